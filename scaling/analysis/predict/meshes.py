"""A sharded run at meshes, world sizes and links that were not run: the prediction, its interval, and the back-test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from scaling.analysis.network.ring import NoPathError
from scaling.analysis.predict.fabrics import carries
from scaling.analysis.predict.mesh_links import Question, transfers
from scaling.analysis.predict.prediction import LAUNCH, LINK
from scaling.analysis.predict.units import UnitSource, step_ns
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Assumption,
    Backtest,
    Degrees,
    Measured,
    PredictedMemory,
    PredictedPoint,
    Prediction,
)
from scaling.analysis.simulate import links
from scaling.hardware.datasheets import memory_of
from scaling.spec.listing import Listed
from scaling.spec.parallel import Mesh, Parallel
from scaling.spec.plan import Plan
from scaling.spec.run import WhatIf
from scaling.spec.topology import Topology

NS_MS = 1e6
RESERVED = 0.95
"""Share of a device's memory that tensors can have: the rest is the driver's, the context's and the communicators'."""
NO_SOURCE = (
    "no world size above 1 of this run has everything that a prediction starts from: the light probe, the strategy "
    "over one rank, its collectives sent alone, and the link"
)
Listings = Callable[[Parallel, Mesh, Topology], Listed]
"""What a program sends at a mesh, on a topology's back end."""


def mesh_predictions(
    sources: Sequence[UnitSource], plan: Plan, analysis: Analysis, asked: WhatIf, listings: Listings
) -> Prediction:
    """Everything that `scaling predict` shows of a sharded run."""
    own, parallel = plan.spec.topology, asked.parallel or plan.spec.parallel
    as_run = {s.world_size: _question(plan.spec.parallel, own, s.world_size) for s in sources}
    tests = _backtest(sources, as_run, own, listings)
    doubt = math.sqrt(sum(test.error**2 for test in tests) / len(tests)) if tests else 0.0
    points: list[PredictedPoint] = []
    leans: tuple[tuple[str, str, float], ...] = ()
    for n in asked.world_sizes:
        hosts = asked.topology.hosts_of(n)
        source = _nearest(sources, n, own, asked.topology)
        if n == 1 or source is None:
            why = "one rank alone is measured, not predicted" if n == 1 else NO_SOURCE
            points.append(PredictedPoint(world_size=n, hosts=hosts, from_world_size=0, cannot=why))
            continue
        question = _question(parallel, asked.topology, n)
        listed = listings(parallel, question.mesh, asked.topology)
        try:
            leans = _leans(source, as_run[source.world_size], question, listed, own, listings)
        except NoPathError as error:
            points.append(
                PredictedPoint(
                    world_size=n, hosts=hosts, from_world_size=source.world_size, cannot=str(error)
                )
            )
            continue
        batch = asked.batch_at(n, plan.spec.mode) * n
        points.append(_point(source, question, listed, leans, doubt, batch, analysis))
    return Prediction(
        schema=SCHEMA,
        run=analysis.run,
        changes=asked.changes,
        topology=asked.topology.name,
        points=tuple(points),
        half_at=None,
        looked_up_to=0,
        backtest=tests,
        backtest_missing=None
        if tests
        else "fewer than two world sizes above 1 were measured, so nothing is left to predict one of them from",
        assumptions=tuple(
            Assumption(what=what, varied=varied, step_change=change, efficiency_change=None)
            for what, varied, change in sorted(leans[1:], key=lambda one: -abs(one[2]))
        ),
        notes=_notes(plan, asked),
    )


def _question(parallel: Parallel, topology: Topology, n: int) -> Question:
    return Question(parallel=parallel, topology=topology, mesh=parallel.mesh(n))


def _nearest(sources: Sequence[UnitSource], n: int, own: Topology, asked: Topology) -> UnitSource | None:
    """The largest measured world size up to this one, of those that cross hosts as it does."""
    across = asked.hosts_of(n) > 1
    alike = [s for s in sources if (own.hosts_of(s.world_size) > 1) == across] or list(sources)
    below = [s for s in alike if s.world_size <= n]
    return below[-1] if below else (alike[0] if alike else None)


def _ratio(
    source: UnitSource,
    before: Question,
    after: Question,
    listed: tuple[Listed, Listed],
    own: Topology,
    *,
    bandwidth: float = 1.0,
    latency: float = 1.0,
    pace: float = 1.0,
) -> float:
    """The simulated step at the asked mesh over the one at the measured mesh; factors act on the asked one."""
    steps = []
    for question, list_, factors in (
        (before, listed[0], (1.0, 1.0, 1.0)),
        (after, listed[1], (bandwidth, latency, pace)),
    ):
        times, wires = transfers(source, question, list_, own, factors[0], factors[1])
        steps.append(step_ns(list_, source.own, times, wires, pace=factors[2]))
    return steps[1] / steps[0]


def _leans(
    source: UnitSource, before: Question, after: Question, listed: Listed, own: Topology, listings: Listings
) -> tuple[tuple[str, str, float], ...]:
    """What the step depends on: first ("", "", ratio), then (what, what is varied, relative change of the step)."""
    both = (listings(before.parallel, before.mesh, before.topology), listed)

    def ratio(bandwidth: float = 1.0, latency: float = 1.0, pace: float = 1.0) -> float:
        return _ratio(source, before, after, both, own, bandwidth=bandwidth, latency=latency, pace=pace)

    upright = ratio()
    if before == after:
        return (("", "", upright),)
    doubt = LINK
    factor = 1.5
    if not carries(own, after.topology):
        doubt, factor = links.doubts(after.topology, after.mesh.dimensions)
    return (
        ("", "", upright),
        (
            "bandwidth of the links",
            f"{doubt:.0%} less",
            ratio(bandwidth=1 - doubt) / upright - 1,
        ),
        ("latency of a hop", f"{factor:g} times", ratio(latency=factor) / upright - 1),
        ("compute is the same in another launch", f"{LAUNCH:.0%} more", ratio(pace=1 + LAUNCH) / upright - 1),
    )


def _point(
    source: UnitSource,
    question: Question,
    listed: Listed,
    leans: Sequence[tuple[str, str, float]],
    doubt: float,
    samples: int,
    analysis: Analysis,
) -> PredictedPoint:
    step = source.step_ms * leans[0][2]
    moves = [change for *_, change in leans[1:]]
    error = math.hypot(*moves, doubt if moves else 0.0)
    step = step.with_error(error * step.value)
    efficiency = None
    if source.bare_ms is not None:
        bare = source.bare_ms.value
        efficiency = Measured(
            bare / step.value,
            None if step.high is None else bare / step.high,
            None if step.low is None else bare / step.low,
            step.n,
        )
    mesh = question.mesh
    return PredictedPoint(
        world_size=mesh.size,
        hosts=question.topology.hosts_of(mesh.size),
        from_world_size=source.world_size,
        step_ms=step,
        samples_per_s=None if not samples else _rate_of(samples, step),
        speedup=None if efficiency is None else efficiency * float(mesh.size),
        efficiency=efficiency,
        parallel=Degrees(strategy=question.parallel.name, **dataclasses.asdict(mesh)),
        memory=_memory(listed, question.topology, analysis, source.world_size),
    )


def _rate_of(samples: int, step: Measured) -> Measured:
    def of(ms: float | None) -> float | None:
        return None if ms is None else samples * 1e3 / ms

    return Measured(samples * 1e3 / step.value, of(step.high), of(step.low), step.n)


def _memory(listed: Listed, topology: Topology, analysis: Analysis, measured_at: int) -> PredictedMemory:
    """What a rank holds: the listing's parts, and the activations that the run measured, with the same batch."""
    point = next((p for p in analysis.points if p.world_size == measured_at), None)
    activations = None if point is None else point.memory.activations_bytes
    known = memory_of(topology.accelerator) if topology.accelerator else None
    total = sum(listed.memory.values()) + (activations or 0)
    return PredictedMemory(
        **{f"{name}_bytes": size for name, size in listed.memory.items()},
        activations_bytes=activations,
        capacity_bytes=None if known is None else known[0],
        fits=None if known is None else total <= RESERVED * known[0],
    )


def _backtest(
    sources: Sequence[UnitSource], as_run: Mapping[int, Question], own: Topology, listings: Listings
) -> tuple[Backtest, ...]:
    """Every measured world size, predicted from the others."""
    tests = []
    for left_out in sources:
        others = [s for s in sources if s is not left_out]
        source = _nearest(others, left_out.world_size, own, own)
        if source is None:
            continue
        before, after = as_run[source.world_size], as_run[left_out.world_size]
        listed = listings(after.parallel, after.mesh, own)
        try:
            leans = _leans(source, before, after, listed, own, listings)
        except NoPathError:
            continue
        moves = [change for *_, change in leans[1:3]]
        found = source.step_ms * leans[0][2]
        found = found.with_error(math.hypot(*moves) * found.value if moves else 0.0)
        tests.append(
            Backtest(
                world_size=left_out.world_size,
                from_world_size=source.world_size,
                predicted_ms=found,
                measured_ms=left_out.step_ms,
                error=found.value / left_out.step_ms.value - 1,
                held=found.holds(left_out.step_ms.value),
            )
        )
    return tuple(tests)


def _notes(plan: Plan, asked: WhatIf) -> tuple[str, ...]:
    own, notes = plan.spec.topology, []
    if asked.elsewhere and not carries(own, asked.topology):
        notes.append(
            f"the run used {own.backend} over {own.name}: a rank's own times are carried over as they were measured "
            "there, on its device; its links are not"
        )
    if own.backend != asked.topology.backend and own.backend == "gloo":
        notes.append(
            "a host that runs ahead of its device gathers sooner than this run's did, so more may be hidden there"
        )
    notes.append("the latest of more ranks is taken to cost what it cost among those that were measured")
    if asked.topology.name != own.name and asked.topology.note:
        notes.append(asked.topology.note)
    return tuple(notes)
