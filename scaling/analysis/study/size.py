"""What the run at one world size brings to a study, what is said of the runs together, and what limits each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from scaling.analysis.decompose.point import arms
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.quality.untracked_traffic import UNSEEN, of_hidden_waits
from scaling.analysis.results import NO_CAUSE, Analysis, Loss, Measured, Point, Quality, Study, Verdict
from scaling.analysis.results.run import CONTENDED
from scaling.analysis.results.verdicts import named, undecided
from scaling.analysis.statistics.rounds import Floats, Means
from scaling.analysis.verdicts.verdict import SCALES_WELL, confidence_of, uncertain
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN, PROBE
from scaling.units import UNKNOWN, ranks, significant, two_digits

COMPUTE = ("forward", "compute", "optimizer")
"""Phases that need no other rank; `compute` is backward without its waits."""
PHASES = (*COMPUTE, "input", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One world size of a study."""

    path: str
    """The run's folder, for messages."""
    plan: Plan
    analysis: Analysis
    launch_ns: tuple[float, ...]
    """Mean plain step of each launch that counts."""
    shares: Mapping[str, Measured]
    """Input, host and COMPUTE together (`compute`) of the typical ranks, and `waits`: fractions of the step."""

    @property
    def world_size(self) -> int:
        return self.plan.ranks

    @property
    def batch(self) -> int:
        """Samples of a rank in a step; 0 where they were not seen."""
        return self.plan.trials[0].batch

    @property
    def point(self) -> Point:
        return self.analysis.points[0]


def read_size(path: str, analysis: Analysis, run: RunRecords) -> Size:
    """Read an own loop's run, which `analysis` was made of."""
    plan, records = run.plan, run.usable.trial(run.plan.ranks)
    if records.index.is_empty():
        return Size(path=path, plan=plan, analysis=analysis, launch_ns=(), shares={})
    rounds = arms(records, plan).rounds
    steps, launch = rounds.values[PLAIN], rounds.launch
    finite = np.isfinite(steps)
    means = tuple(float(steps[finite & (launch == k)].mean()) for k in np.unique(launch[finite]))

    def share(m: Means, *phases: str) -> Floats:
        """Phases of the typical ranks as a fraction of the step with phase stamps."""
        return sum((m[f"typical.{PROBE}.{phase}"] for phase in phases), np.zeros(1)) / m[PROBE]

    measured = {
        "compute": rounds.measure(lambda m: share(m, *COMPUTE)),
        "input": rounds.measure(lambda m: share(m, "input")),
        "host": rounds.measure(lambda m: share(m, "host")),
        "waits": rounds.measure(lambda m: 1 - share(m, *PHASES)),
    }
    shares = {name: number for name, number in measured.items() if number is not None}
    return Size(path=path, plan=plan, analysis=analysis, launch_ns=means, shares=shares)


LAUNCHES_DIFFER = "another launch of the same script can be up to a fifth slower or faster"


def warnings(sizes: Sequence[Size], study: Study) -> Iterator[str]:
    """What the intervals cover, and what the runs do not have in common."""
    if study.covers == "within":
        yield (
            "one launch at each world size: the intervals cover what differs within these launches, and not what "
            f"differs from launch to launch ({LAUNCHES_DIFFER}); repeat the launches in turns"
        )
    elif any(len(size.launch_ns) == 1 for size in sizes):
        alone = ", ".join(str(size.world_size) for size in sizes if len(size.launch_ns) == 1)
        yield f"one launch at world size {alone}: its spread is taken from the other world sizes"
    if not all(size.batch for size in sizes):
        yield (
            "the samples of a step were not seen at every world size, so a rank's batch is taken to be the same (weak "
            "scaling); Probe(batch=...) says it"
        )
    steps = {size.plan.spec.accumulation_steps for size in sizes}
    if len(steps) > 1:
        yield f"micro-steps in a step differ between world sizes: {', '.join(map(str, sorted(steps)))}"
    if len(threads := _threads(sizes)) > 1:
        yield (
            f"threads of a rank differ between world sizes ({', '.join(map(str, threads))}), as where torchrun sets "
            "OMP_NUM_THREADS=1 for several ranks alone: set it for all, or use `scaling launch`"
        )
    if study.base_world_size > 1:
        yield (
            f"no run at world size 1, so efficiency and speedup are relative to {study.base_world_size} ranks, and the "
            "loss is not split by cause"
        )


def quality(sizes: Sequence[Size], study: Study, points: Sequence[Point], first: Sequence[str]) -> Quality:
    """The runs' qualities together."""
    each = [(size.world_size, size.analysis.quality) for size in sizes]
    bounds = [q.clock_bound_us for _, q in each if q.clock_bound_us is not None]
    device = [q.device_clock_bound_us for _, q in each if q.device_clock_bound_us is not None]
    reached = []
    if study.launch_spread is not None:
        reached.append(
            f"launches of one world size differ by {study.launch_spread:.1%} (standard deviation, pooled over world "
            f"sizes, {study.degrees} degrees of freedom); the intervals of steps and efficiencies cover that"
        )
    last = points[-1].efficiency
    if last is not None:
        how_well = f"{UNKNOWN}: its steps or launches were too few or too uneven"
        if last.half_width is None:
            how_well = "without an interval: a single stretch of the loop was recorded; train for more steps"
        elif last.tells:
            how_well = f"known to ±{two_digits(100 * last.half_width)} points"
        reached.append(f"efficiency at {points[-1].world_size} ranks is {how_well}")
    return Quality(
        contended_blocks=sum(q.contended_blocks for _, q in each),
        dropped_samples=sum(q.dropped_samples for _, q in each),
        dropped_blocks=sum(q.dropped_blocks for _, q in each),
        clock_bound_us=max(bounds, default=None),
        device_clock_bound_us=max(device, default=None),
        reached=tuple(reached),
        warnings=(*first, *(_at(n, line) for n, q in each for line in q.warnings)),
    )


def _at(n: int, line: str) -> str:
    """A run's warning with its world size; one about contention still begins so."""
    where = f"at {ranks(n)}"
    if line.startswith(CONTENDED):
        return f"{CONTENDED}{where}, {line.removeprefix(CONTENDED)}"
    return f"{where}: {line}"


ONE_EACH = "one launch at each world size, and launches differ, so this is a hint, not a finding"


def causes(size: Size, point: Point, base: Size, study: Study, compared: int) -> tuple[Verdict, ...]:
    """The causes that the run itself shows, and compute that has become slower; largest first.

    `compared`: world sizes that are compared with the base.
    """
    if point.world_size == base.world_size or point.efficiency is None:
        return ()
    if hidden := of_hidden_waits(size.analysis.verdicts):
        return tuple(hidden)
    well = point.efficiency.surely_above(SCALES_WELL)
    named_here = [v for v in size.analysis.verdicts if v.cause not in NO_CAUSE]
    doubts = _doubts(size, base, study)
    verdicts = named_here if well else [g for v in named_here for g in _grown(v, point, doubts, compared)]
    verdicts += _slower(size, point, base, study, compared)
    if verdicts:
        return tuple(sorted(verdicts, key=lambda v: -(v.share.value if v.share else 0.0)))
    if well:
        evidence = (f"efficiency {point.efficiency.low:.1%} to {point.efficiency.high:.1%}", *doubts)
        return (named("scales_well", point, None, evidence, confidence="low" if doubts else "high"),)
    if any(UNSEEN in v.evidence for v in size.analysis.verdicts):
        return (undecided(point.world_size, UNSEEN),)
    why = "no cause stands clear of the noise; train more steps, or launch more often"
    return (undecided(point.world_size, why, *_largest(point)),)


def _largest(point: Point) -> tuple[str, ...]:
    """The largest term of the loss, where it would be notable."""
    if point.loss is None:
        return ()
    terms = {field.name: getattr(point.loss, field.name) for field in fields(Loss)}
    return uncertain({name: share for name, share in terms.items() if share and name != "unexplained"})


def _grown(verdict: Verdict, point: Point, doubts: Sequence[str], compared: int) -> Iterator[Verdict]:
    """The verdict; one on a phase with what that takes more than at the base, or none if that is no loss of scaling."""
    grown = getattr(point.loss, verdict.cause, None) if verdict.cause in ("input", "host") else None
    if grown is None:
        yield verdict
    elif grown.value > point.overhead.floor and (confidence := confidence_of(grown, compared)):
        verdict = replace(verdict, share=grown, confidence=confidence)
        yield verdict.as_hint(*doubts) if doubts else verdict


def _slower(size: Size, point: Point, base: Size, study: Study, compared: int) -> list[Verdict]:
    """Compute that takes longer than at the base; never more than a hint with one launch at each size."""
    share = point.loss.slower_compute if point.loss else None
    confidence = confidence_of(share, compared) if share and share.value > point.overhead.floor else ""
    if share is None or not confidence:
        return []
    assert size.point.step_ms is not None
    assert base.point.step_ms is not None
    here = size.shares["compute"].value * size.point.step_ms.value
    before = base.shares["compute"].value * base.point.step_ms.value
    smaller = size.batch / base.batch if base.batch and size.batch else 1.0
    batch_share = (
        "" if smaller == 1 else f", of which this batch's share is {significant(before * smaller)} ms"
    )
    evidence = (
        f"forward, backward and optimizer take {significant(here)} ms at {size.world_size} ranks and "
        f"{significant(before)} ms at "
        f"{base.world_size}{batch_share}; waits for other ranks are left out",
        "ranks that share cores, caches or memory slow each other, and so does communication during compute; "
        "probe.baseline(step) separates the two",
    )
    verdict = named("slower_compute", point, share, evidence, (), confidence)
    doubts = _doubts(size, base, study)
    return [verdict.as_hint(*doubts) if doubts else verdict]


def _threads(sizes: Sequence[Size]) -> list[int]:
    """The threads of a rank where these compute, each number once."""
    return sorted({s.plan.spec.threads for s in sizes if s.plan.spec.topology.device == "cpu"})


def _doubts(size: Size, base: Size, study: Study) -> tuple[str, ...]:
    """Why a difference between launches is only a hint."""
    doubts = [ONE_EACH] if study.covers == "within" else []
    if len(_threads((base, size))) > 1:
        doubts.append("a rank has other threads than at the base, so this is a hint, not a finding")
    contended = [str(s.world_size) for s in (base, size) if s.analysis.quality.contended]
    if contended:
        doubts.append(
            f"other programs ran during the launches at world size {', '.join(contended)}, so this is a hint, not a "
            "finding"
        )
    return tuple(doubts)
