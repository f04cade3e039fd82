"""Every fault in small models of every family, as a fixed fractional design.

Two emulated hosts of one rank each. A step takes some 25 ms on a core and reduces half a MiB at most. Such models
lose something to the link, to neighbours, to DDP's own work and to overlap on two cores; these may be named beside a
fault, and on controls. A fault has to be the first verdict, with its rank and phase.

Each family has the control and four to six of the ten faults. Fault k is in the families k, k+1 and k+3 (modulo six)
for the first six faults, and in those where fault k-6 is not for the others. The rank that is late alternates.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from scaling.analysis.results import NO_CAUSE
from scaling.analysis.selftest.grade import LINK, FaultCase, loss_ms, stalled, straggler_ms, words

LATE_MS = 40
COMMON = words(
    "topology=emulated_pcie topology.link.rate=2gbit world_sizes=[2] measure=quick measure.steps=4 "
    "measure.lead_in=1 measure.rounds_min=4 measure.rounds_max=4 measure.budget_s=12 measure.fabric_max=256KiB "
    "tracking=disabled"
)
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "cnn": words("model=highmem_cnn model.channels=16 model.hidden=8 batch_per_rank=72"),
    "cnn with BatchNorm": words("model=highmem_cnn_bn model.channels=16 model.hidden=8 batch_per_rank=72"),
    "resnet": words(
        "model=resnet18 model.depths=[1,1] model.widths=[16,32] model.image=48 model.classes=10 "
        "batch_per_rank=16"
    ),
    "vit": words(
        "model=vit model.width=64 model.layers=2 model.heads=2 model.feedforward=128 model.image=64 "
        "model.patch=8 model.classes=10 batch_per_rank=24"
    ),
    "gpt2": words(
        "model=gpt2 model.width=64 model.layers=2 model.heads=2 model.vocabulary=512 model.context=64 "
        "model.sequence=64 batch_per_rank=12"
    ),
    "detection": words(
        "model=yolos_tiny model.width=64 model.layers=2 model.heads=2 model.feedforward=128 "
        "model.position_grid=[64,64] model.queries=10 model.objects=3 model.height=64 "
        "model.image=64 batch_per_rank=16"
    ),
}
LOST = ("neighbours", "strategy_overhead", "overlap", *LINK)
"""What these models really lose on two cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is injected, and the causes of which one has to be the first verdict."""

    overrides: tuple[str, ...]
    accepted: tuple[str, ...]
    late_in: str = ""
    """The phase of the late rank."""
    costs_ms: float | None = None
    """Cost of the late rank, or of every rank's input, ms per step."""
    contended: bool = False


def _late(phase: str) -> Fault:
    return Fault(overrides=(), accepted=("straggler",), late_in=phase, costs_ms=LATE_MS)


FAULTS: Mapping[str, Fault] = {
    "late in input": _late("input"),
    "slow link": Fault(overrides=("topology.link.rate=40mbit",), accepted=LINK),
    "late in forward": _late("forward"),
    "forgotten no_sync": Fault(
        overrides=("accumulation_steps=4", "inject.wrong_no_sync=true", "topology.link.rate=100mbit"),
        accepted=LINK,
    ),
    "late in backward": _late("backward"),
    "slow loader": Fault(overrides=tuple(stalled("input", LATE_MS)), accepted=("input",), costs_ms=LATE_MS),
    "late in optimizer": _late("optimizer"),
    "small buckets": Fault(overrides=("ddp.bucket_cap_mb=0.01", "topology.link.rate=100mbit"), accepted=LINK),
    "late in host": _late("host"),
    "contention": Fault(overrides=("inject.contention=2",), accepted=(*NO_CAUSE, *LOST), contended=True),
}
_PART = (0, 1, 3)


def _families_of(k: int) -> list[str]:
    """The families that have the k-th fault."""
    every = list(FAMILIES)
    part = [(k + step) % len(every) for step in _PART]
    first = k < len(every)
    return [family for index, family in enumerate(every) if (index in part) == first]


def _case(family: str, name: str, rank: int) -> FaultCase:
    fault = FAULTS[name]
    late = fault.late_in
    return FaultCase(
        name=f"{family}, rank {rank} {name}" if late else f"{family}, {name}",
        overrides=(
            *COMMON,
            *FAMILIES[family],
            *fault.overrides,
            *(stalled(late, LATE_MS, rank) if late else ()),
        ),
        accepted=fault.accepted,
        possible=LOST,
        expected_ms=fault.costs_ms,
        attributed_ms=None if fault.costs_ms is None else straggler_ms if late else loss_ms("input"),
        rank=rank if late else None,
        phase=late,
        contended=fault.contended,
    )


def _control(family: str) -> FaultCase:
    return FaultCase(
        name=f"{family}, control", overrides=(*COMMON, *FAMILIES[family]), accepted=(*NO_CAUSE, *LOST)
    )


def _design() -> tuple[FaultCase, ...]:
    return (
        *map(_control, FAMILIES),
        *(
            _case(family, name, (k + turn) % 2)
            for k, name in enumerate(FAULTS)
            for turn, family in enumerate(_families_of(k))
        ),
    )


CASES = _design()
"""All cells: six controls and thirty faults."""


def drawn(count: int, seed: int) -> tuple[FaultCase, ...]:
    """A control and cells of `count` - 1 different faults, at random."""
    draw = random.Random(f"zoo/{seed}")
    controls, rest = CASES[: len(FAMILIES)], CASES[len(FAMILIES) :]
    of_fault = [rest[k : k + len(_PART)] for k in range(0, len(rest), len(_PART))]
    return (draw.choice(controls), *(draw.choice(cells) for cells in draw.sample(of_fault, count - 1)))
