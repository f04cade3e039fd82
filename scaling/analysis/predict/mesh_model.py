"""Steps at meshes that were not measured, from those that were."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from scaling.analysis.predict.fabrics import carries
from scaling.analysis.predict.mesh_links import Question, transfers
from scaling.analysis.predict.own_times import BACKWARD, FORWARD
from scaling.analysis.predict.prediction import LAUNCH, LINK
from scaling.analysis.predict.units import UnitSource, step_ns
from scaling.analysis.simulate import links
from scaling.spec.listing import Listed
from scaling.spec.parallel import Parallel
from scaling.spec.plan import Plan

NO_SOURCE = (
    "no world size above 1 of this run has everything that a prediction starts from: a sharded or divided strategy, "
    "its probe, light and detailed, and the link's size sweep"
)
Listings = Callable[[Question, int], Listed]
"""What a program sends at a mesh, on a topology's back end, with so many samples in a micro-step."""


class MeshModel:
    """Steps at meshes, from what was measured at others."""

    def __init__(self, sources: Sequence[UnitSource], plan: Plan, listings: Listings) -> None:
        self._sources, self._spec, self._listings = list(sources), plan.spec, listings
        self.own, self.fsdp = plan.spec.topology, plan.spec.fsdp

    def listed(self, question: Question) -> Listed:
        """What is sent there, with the run's batch."""
        spec, ranks = self._spec, question.mesh.data_parallel
        batch = spec.batch_per_rank if spec.mode == "weak" else (spec.global_batch or 0) // ranks
        return self._listings(question, max(1, batch // spec.accumulation_steps))

    def start(self, question: Question) -> UnitSource | None:
        """The measured mesh that is most like it: by crossing hosts, the tensor degree, ranks, and the strategy."""
        n, across = question.mesh.size, question.topology.hosts_of(question.mesh.size) > 1

        def unlike(source: UnitSource) -> tuple[float, ...]:
            size, mesh = source.world_size, source.mesh
            return (
                (self.own.hosts_of(size) > 1) != across,
                abs(math.log2(mesh.tensor / question.mesh.tensor)),
                size > n,
                abs(size - n),
                _has_units(source.parallel) != _has_units(question.parallel),
                source.parallel.name != question.parallel.name,
            )

        found = min(self._sources, key=unlike, default=None)
        return None if found is None else self._knowing_all(found)

    def cannot(self, question: Question, source: UnitSource | None) -> str | None:
        """Why nothing can be predicted there."""
        if source is None:
            return NO_SOURCE
        if self._spec.mode == "strong" and source.mesh.data_parallel != question.mesh.data_parallel:
            return (
                f"with one global batch a rank has another part of it over {question.mesh.data_parallel} ranks with "
                f"samples of their own than over the measured {source.mesh.data_parallel}: measure it there"
            )
        return None

    def notes(self, source: UnitSource, question: Question) -> list[str]:
        """What the point is made from."""
        name, tensor = question.parallel.name, question.mesh.tensor
        found = []
        if (source.parallel.name, source.world_size) != (name, question.mesh.size):
            found.append(
                f"{name} at {question.mesh.size}: from {source.parallel.name} at {source.world_size}"
            )
        if tensor != source.mesh.tensor:
            known = sorted(
                {one.mesh.tensor for one in self._sources} | {1 for one in self._sources if one.own.bare}
            )
            how = (
                f"it is a + b / degree through {' and '.join(map(str, known))}"
                if len(known) > 1
                else f"it is taken to divide by {tensor / source.mesh.tensor:g}"
            )
            found.append(f"{name}: a rank's compute at tensor degree {tensor} was not measured; {how}")
        if not question.parallel.sharded:
            found.append(
                f"{name}: a rank's compute is the bare model's; what DDP's own copies take is not in it"
            )
        return found

    def _knowing_all(self, source: UnitSource) -> UnitSource:
        """A source that also knows the links of the other ones."""
        moved: dict[tuple[str, bool], float] = {}
        alpha: dict[tuple[str, bool], float] = {}
        for one in (*self._sources, source):
            moved |= one.moved_ns
            alpha |= one.alpha_ns
        return dataclasses.replace(source, moved_ns=moved, alpha_ns=alpha)

    def _factors(self, source: UnitSource, question: Question) -> dict[str, float]:
        """A rank's compute at the asked mesh over the source's, by phase.

        At tensor degree t it is a + b / t through the degrees that are known (the bare model's is 1), and what
        fully_shard adds to the bare model where there are units.
        """
        tensor, units = question.mesh.tensor, _has_units(question.parallel)
        if (tensor, units) == (source.mesh.tensor, _has_units(source.parallel)):
            return {FORWARD: 1.0, BACKWARD: 1.0}
        found = {}
        for phase in (FORWARD, BACKWARD):
            added, times = self._compute(phase)
            if tensor in times:
                here = times[tensor]
            elif len(times) > 1:
                slope, fixed = np.polyfit([1 / degree for degree in times], list(times.values()), 1)
                here = max(0.0, fixed + slope / tensor)
            else:
                ((degree, known),) = times.items()
                here = known * degree / tensor
            found[phase] = (here + (added if units else 0.0)) / source.own.phases[phase]
        return found

    def _compute(self, phase: str) -> tuple[float, dict[int, float]]:
        """What fully_shard adds to a rank's compute of whole layers, and by tensor degree what is left without it."""
        bare = [one.own.bare[phase] for one in self._sources if phase in one.own.bare]
        whole = [one.own.phases[phase] for one in self._sources if one.mesh.tensor == 1]
        added = max(0.0, _mean(whole) - _mean(bare)) if bare and whole else 0.0
        known: dict[int, list[float]] = {1: bare} if bare else {}
        for one in self._sources:
            if one.mesh.tensor > 1 or not bare:
                own = one.own.phases[phase] - (added if _has_units(one.parallel) else 0.0)
                known.setdefault(one.mesh.tensor, []).append(own)
        return added, {degree: _mean(each) for degree, each in known.items()}

    def step_ns(
        self,
        source: UnitSource,
        question: Question,
        *,
        bandwidth: float = 1.0,
        latency: float = 1.0,
        pace: float = 1.0,
    ) -> float:
        """The simulated step of a rank."""
        listed = self.listed(question)
        times, wires = transfers(source, question, listed, self.own, bandwidth, latency)
        own = source.own.scaled(self._factors(source, question))
        return step_ns(listed, own, times, wires, pace=pace)

    def leans(self, source: UnitSource, question: Question) -> tuple[tuple[str, str, float], ...]:
        """What the step depends on: first ("", "", ratio), then (what, what is varied, relative change of the step).

        The ratio is of the simulated step at the asked mesh to the one at the measured mesh.
        """
        measured = Question(parallel=source.parallel, fsdp=self.fsdp, topology=self.own, mesh=source.mesh)
        before = self.step_ns(source, measured)
        upright = self.step_ns(source, question)
        if measured == question:
            return (("", "", upright / before),)
        doubt, factor = LINK, 1.5
        if not carries(self.own, question.topology):
            doubt, factor = links.doubts(question.topology, question.mesh.dimensions)

        def change(**factors: float) -> float:
            return self.step_ns(source, question, **factors) / upright - 1

        return (
            ("", "", upright / before),
            ("bandwidth of the links", f"{doubt:.0%} less", change(bandwidth=1 - doubt)),
            ("latency of the links", f"{factor:g} times", change(latency=factor)),
            ("compute is the same in another launch", f"{LAUNCH:.0%} more", change(pace=1 + LAUNCH)),
        )


def _has_units(parallel: Parallel) -> bool:
    """Whether fully_shard gathers and reduces."""
    return parallel.sharded and parallel.name != "tp"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
