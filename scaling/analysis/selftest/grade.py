"""Faults that are injected on purpose, and whether the verdicts find them. Pure.

In a synthetic model arithmetic says what each costs. All these cases are two emulated hosts with synthetic compute
(sleeps of a known length) and gradients in one bucket, so nothing of a transfer is hidden and the arithmetic is exact:

- a stall of d ms on every rank, or on one of them (in every bucket's way), costs d;
- an all-reduce of m bytes over n ranks takes 2 (n-1)/n m / rate, the rate being what TCP's users get
  of the link; without no_sync it happens once a micro-step;
- on the controls' link that is some 0.7 ms, and latency about as much again: each less than half of the 3 % of a
  step that a verdict is made of.

Small models of every family have every fault, as a fixed fractional design on two hosts of one rank each. A step takes
some 25 ms on a core and reduces half a MiB at most. Such models lose something to the link, to neighbours, to DDP's own
work and to overlap on two cores; these may be named beside a fault, and on controls. A fault has to be the first
verdict, with its rank and phase.

Each family has the control and four to six of the ten faults. Fault k is in the families k, k+1 and k+3 (modulo six)
for the first six faults, and in those where fault k-6 is not for the others. The rank that is late alternates.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaling.analysis.results import NO_CAUSE, SCHEMA, Analysis, Measured, Point, SelfTest, SelfTestCase
from scaling.settings.plan import Plan
from scaling.settings.topology import TCP_PAYLOAD_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCase:
    """One injected fault and the verdicts that are accepted for it."""

    name: str
    overrides: tuple[str, ...]
    """Overrides of the run, with the fault; where a key stands twice the later one counts."""
    accepted: tuple[str, ...]
    """One of these causes has to be the first verdict."""
    possible: tuple[str, ...] = ()
    """Other causes that may be named too."""
    expected_ms: float | None = None
    """What the fault adds to a step."""
    attributed_ms: Callable[[Point], float | None] | None = None
    """Reads from the point what the analysis attributes to the fault."""
    rank: int | None = None
    """Rank of the straggler."""
    phase: str = ""
    """Phase of the straggler."""
    contended: bool = False
    """The run has to warn of contention; causes may then have low confidence only."""

    @property
    def settings(self) -> list[str]:
        """Overrides for `scaling run`, each key once."""
        return list({text.split("=", 1)[0]: text for text in self.overrides}.values())


def loss_ms(*causes: str) -> Callable[[Point], float | None]:
    """Reads what the waterfall has for some causes together, ms."""

    def attributed(point: Point) -> float | None:
        shares = [getattr(point.loss, cause) for cause in causes]
        numbers = [share.value for share in shares if share is not None]
        return sum(numbers) * point.step_ms.value if numbers and point.step_ms else None

    return attributed


def straggler_ms(point: Point) -> float | None:
    """What the late rank costs a step, ms."""
    return point.straggler.cost_ms.value if point.straggler else None


INJECTS = {"forward": "compute"}
"""Phase of a step -> the override `inject.NAME_ms` that stalls it, where their names differ."""


def stalled(phase: str, stall_ms: float, rank: int | None = None) -> str:
    """Overrides that stall a phase, on one rank or on all."""
    where = "" if rank is None else f"inject.rank={rank} "
    return f"{where}inject.{INJECTS.get(phase, phase)}_ms={stall_ms:g}"


ATTRIBUTION_BAR = 0.10
"""Largest accepted median of |attributed / expected - 1|."""


def grade(case: FaultCase, analysis: Analysis, plan: Plan) -> SelfTestCase:
    """One finished run against its case."""
    size = max(t.world_size for t in plan.trials)
    point = next(p for p in analysis.points if p.world_size == size)
    verdicts = [v for v in analysis.verdicts if v.world_size == size]
    # What is open beside a named cause comes before it in the list, and not in the report's answer.
    first = next((v.cause for v in verdicts if v.cause != "undecided"), "undecided")
    named = [v for v in verdicts if v.cause not in (*NO_CAUSE, *case.accepted, *case.possible)]
    attributed = case.attributed_ms(point) if case.attributed_ms and point.loss else None
    error = None
    if case.expected_ms is not None and attributed is not None:
        error = attributed / case.expected_ms - 1
    hit = bool(analysis.quality.contended) if case.contended else first in case.accepted
    if case.rank is not None:  # then the late rank has to be the one that was stalled, in its phase
        late = point.straggler
        hit = hit and late is not None and (late.rank, late.phase) == (case.rank, case.phase)
    return SelfTestCase(
        name=case.name,
        injected=" ".join(case.settings) or "nothing",
        accepted=case.accepted,
        first=first,
        hit=hit,
        false_alarms=tuple(v.cause for v in named if v.confidence != "low"),
        sure_alarms=tuple(v.cause for v in named if v.confidence == "high"),
        contended=bool(analysis.quality.contended),
        expected_ms=case.expected_ms,
        attributed_ms=attributed,
        error=error,
        step_ms=point.step_ms or Measured(value=float("nan")),
    )


def summary(cases: Sequence[SelfTestCase], planned: int) -> SelfTest:
    """All cases together; a case that could not be run counts as missed, a false cause at high confidence double."""
    errors = [abs(c.error) for c in cases if c.error is not None]
    hits = sum(c.hit for c in cases)
    alarms = sum(len(c.false_alarms) + len(c.sure_alarms) for c in cases)
    median = statistics.median(errors) if errors else None
    return SelfTest(
        schema=SCHEMA,
        cases=tuple(cases),
        hit_rate=hits / planned if planned else 0.0,
        false_alarms=alarms,
        attribution_error=median,
        passed=hits == planned and not alarms and (median is None or median <= ATTRIBUTION_BAR),
    )


_BASE = (
    "world_sizes=[2] topology=emulated_pcie topology.link.rate=3200mbit model=synthetic model.compute_ms=40 "
    "model.layers=8 model.param_mb=0.25 measure=quick measure.steps=4 measure.rounds_min=4 measure.rounds_max=4 "
    "measure.budget_s=40 measure.fabric_max=4MiB tracking=disabled"
)
_MB = 2**20


def _transfer_ms(param_mb: float, rate_mbit: float, times: int = 1) -> float:
    """An all-reduce over two ranks."""
    return times * param_mb * _MB * 8e3 / (rate_mbit * 1e6 * TCP_PAYLOAD_SHARE)


def _case(overrides: str, **expected: Any) -> FaultCase:
    return FaultCase(overrides=(*_BASE.split(), *overrides.split()), **expected)


def _straggler(rank: int) -> FaultCase:
    return _case(
        stalled("forward", STALL_MS, rank),
        name=f"rank {rank} late in forward",
        accepted=("straggler",),
        expected_ms=STALL_MS,
        attributed_ms=straggler_ms,
        rank=rank,
        phase="forward",
    )


def _stall(phase: str) -> FaultCase:
    """Every rank is late in one phase."""
    return _case(
        stalled(phase, STALL_MS),
        name=f"{phase} stall",
        accepted=(phase,),
        expected_ms=STALL_MS,
        attributed_ms=loss_ms(phase),
    )


STALL_MS = 25
LINK = ("link_bandwidth", "link_latency", "communication")
CASES: tuple[FaultCase, ...] = (
    _case("model.compute_ms=70", name="control, two hosts", accepted=NO_CAUSE),
    _case("model.compute_ms=90 model.layers=16", name="control, longer steps", accepted=NO_CAUSE),
    _straggler(0),
    _straggler(1),
    _case(
        "topology.link.rate=500mbit model.param_mb=4 ddp.bucket_cap_mb=64",
        name="slow link",
        accepted=("link_bandwidth",),
        possible=("link_latency",),
        expected_ms=_transfer_ms(4, 500),
        attributed_ms=loss_ms(*LINK),
    ),
    _case(
        "model.param_mb=0.5 model.layers=64 model.compute_ms=10 ddp.bucket_cap_mb=0.001",
        name="tiny buckets",
        accepted=("link_latency",),
        possible=("strategy_overhead", "overlap", "host", "link_bandwidth", "straggler", "neighbours"),
    ),
    _case(
        "topology.link.rate=1gbit model.param_mb=2 ddp.bucket_cap_mb=64 accumulation_steps=4 "
        "inject.wrong_no_sync=true",
        name="no_sync left out",
        accepted=("link_bandwidth",),
        possible=("link_latency",),
        expected_ms=_transfer_ms(2, 1000, times=4),
        attributed_ms=loss_ms(*LINK),
    ),
    _stall("input"),
    _stall("host"),
    _case(
        "inject.contention=2 measure.rounds_min=3 measure.budget_s=14",
        name="busy processes",
        accepted=NO_CAUSE,
        contended=True,
    ),
)
"""What `scaling selftest` runs."""
MORE: tuple[FaultCase, ...] = (
    _case(
        "topology.link.rate=1gbit model.param_mb=1 ddp.bucket_cap_mb=64 inject.rank=1 inject.link_rate=100mbit",
        name="one host's link at a tenth",
        accepted=("slow_path",),
        possible=LINK,
        expected_ms=_transfer_ms(1, 100),
        attributed_ms=loss_ms(*LINK),
    ),
)
"""What `--full` adds, beside cases of real models (`drawn`)."""

LATE_MS = 40
COMMON = (
    "topology=emulated_pcie topology.link.rate=2gbit world_sizes=[2] measure=quick measure.steps=4 "
    "measure.lead_in=1 measure.rounds_min=4 measure.rounds_max=4 measure.budget_s=12 measure.fabric_max=256KiB "
    "tracking=disabled"
)
FAMILIES: Mapping[str, str] = {
    "cnn": "model=highmem_cnn model.channels=16 model.hidden=8 batch_per_rank=72",
    "cnn with BatchNorm": "model=highmem_cnn_bn model.channels=16 model.hidden=8 batch_per_rank=72",
    "resnet": "model=resnet18 model.depths=[1,1] model.widths=[16,32] model.image=48 model.classes=10 "
    "batch_per_rank=16",
    "vit": "model=vit model.width=64 model.layers=2 model.heads=2 model.feedforward=128 model.image=64 "
    "model.patch=8 model.classes=10 batch_per_rank=24",
    "gpt2": "model=gpt2 model.width=64 model.layers=2 model.heads=2 model.vocabulary=512 model.context=64 "
    "model.sequence=64 batch_per_rank=12",
    "detection": "model=yolos_tiny model.width=64 model.layers=2 model.heads=2 model.feedforward=128 "
    "model.position_grid=[64,64] model.queries=10 model.objects=3 model.height=64 model.image=64 batch_per_rank=16",
}
LOST = ("neighbours", "strategy_overhead", "overlap", *LINK)
"""What these models really lose on two cores."""


def _fault(name: str, overrides: str, accepted: Sequence[str], **expected: Any) -> FaultCase:
    """What is injected into any family; `overrides`: beside those of the family and of a late rank."""
    return FaultCase(
        name=name, overrides=tuple(overrides.split()), accepted=tuple(accepted), possible=LOST, **expected
    )


def _late(phase: str) -> FaultCase:
    return _fault(
        f"late in {phase}", "", ("straggler",), expected_ms=LATE_MS, attributed_ms=straggler_ms, phase=phase
    )


_SLOW = "topology.link.rate=100mbit"
_EVERY_FAULT = (
    _late("input"),
    _fault("slow link", "topology.link.rate=40mbit", LINK),
    _late("forward"),
    _fault("forgotten no_sync", f"accumulation_steps=4 inject.wrong_no_sync=true {_SLOW}", LINK),
    _late("backward"),
    _fault(
        "slow loader",
        stalled("input", LATE_MS),
        ("input",),
        expected_ms=LATE_MS,
        attributed_ms=loss_ms("input"),
    ),
    _late("optimizer"),
    _fault("small buckets", f"ddp.bucket_cap_mb=0.01 {_SLOW}", LINK),
    _late("host"),
    _fault("contention", "inject.contention=2", (*NO_CAUSE, *LOST), contended=True),
)
FAULTS: Mapping[str, FaultCase] = {fault.name: fault for fault in _EVERY_FAULT}
_PART = (0, 1, 3)


def _families_of(k: int) -> list[str]:
    """The families that have the k-th fault."""
    every = list(FAMILIES)
    part = [(k + step) % len(every) for step in _PART]
    first = k < len(every)
    return [family for index, family in enumerate(every) if (index in part) == first]


def _model_case(family: str, fault: FaultCase, rank: int) -> FaultCase:
    late = fault.phase
    stall = stalled(late, LATE_MS, rank).split() if late else ()
    return replace(
        fault,
        name=f"{family}, rank {rank} {fault.name}" if late else f"{family}, {fault.name}",
        overrides=(*COMMON.split(), *FAMILIES[family].split(), *fault.overrides, *stall),
        rank=rank if late else None,
    )


def _control(family: str) -> FaultCase:
    overrides = (*COMMON.split(), *FAMILIES[family].split())
    return FaultCase(name=f"{family}, control", overrides=overrides, accepted=(*NO_CAUSE, *LOST))


def _design() -> tuple[FaultCase, ...]:
    return (
        *map(_control, FAMILIES),
        *(
            _model_case(family, fault, (k + turn) % 2)
            for k, fault in enumerate(FAULTS.values())
            for turn, family in enumerate(_families_of(k))
        ),
    )


MODEL_CASES = _design()
"""All cells: six controls and thirty faults."""


def drawn(count: int, seed: int) -> tuple[FaultCase, ...]:
    """A control and cells of `count` - 1 different faults, at random."""
    draw = random.Random(f"zoo/{seed}")
    controls, rest = MODEL_CASES[: len(FAMILIES)], MODEL_CASES[len(FAMILIES) :]
    of_fault = [rest[k : k + len(_PART)] for k in range(0, len(rest), len(_PART))]
    return (draw.choice(controls), *(draw.choice(cells) for cells in draw.sample(of_fault, count - 1)))
