"""Faults in a synthetic model, where arithmetic says what each costs.

All cases are two emulated hosts with synthetic compute (sleeps of a known length) and gradients in
one bucket, so nothing of a transfer is hidden and the arithmetic is exact:

- a stall of d ms on every rank, or on one of them (in every bucket's way), costs d;
- an all-reduce of m bytes over n ranks takes 2 (n-1)/n m / rate, the rate being what TCP's users get
  of the link; without no_sync it happens once a micro-step;
- on the controls' link that is some 0.7 ms, and latency about as much again: each less than half of the 3 % of a
  step that a verdict is made of.
"""

from __future__ import annotations

from typing import Any

from scaling.analysis.results import NO_CAUSE
from scaling.analysis.selftest.grade import FaultCase, loss_ms, stalled, straggler_ms
from scaling.settings.topology import TCP_PAYLOAD_SHARE

_BASE = (
    "world_sizes=[2]",
    "topology=emulated_pcie",
    "topology.link.rate=3200mbit",
    "model=synthetic",
    "model.compute_ms=40",
    "model.layers=8",
    "model.param_mb=0.25",
    "measure=quick",
    "measure.steps=4",
    "measure.rounds_min=4",
    "measure.rounds_max=4",
    "measure.budget_s=40",
    "measure.fabric_max=4MiB",
    "tracking=disabled",
)
_MB = 2**20


def _transfer_ms(param_mb: float, rate_mbit: float, times: int = 1) -> float:
    """An all-reduce over two ranks."""
    return times * param_mb * _MB * 8e3 / (rate_mbit * 1e6 * TCP_PAYLOAD_SHARE)


def _case(*overrides: str, **expected: Any) -> FaultCase:
    return FaultCase(overrides=(*_BASE, *overrides), **expected)


def _straggler(rank: int, phase: str, stall_ms: float) -> FaultCase:
    return _case(
        *stalled(phase, stall_ms, rank),
        name=f"rank {rank} late in {phase}",
        accepted=("straggler",),
        expected_ms=stall_ms,
        attributed_ms=straggler_ms,
        rank=rank,
        phase=phase,
    )


def _stall(phase: str, stall_ms: float) -> FaultCase:
    """Every rank is late in one phase."""
    return _case(
        *stalled(phase, stall_ms),
        name=f"{phase} stall",
        accepted=(phase,),
        expected_ms=stall_ms,
        attributed_ms=loss_ms(phase),
    )


_LINK = ("link_bandwidth", "link_latency")
_ONE_BUCKET = "ddp.bucket_cap_mb=64"
CASES: tuple[FaultCase, ...] = (
    _case("model.compute_ms=70", name="control, two hosts", accepted=NO_CAUSE),
    _case("model.compute_ms=90", "model.layers=16", name="control, longer steps", accepted=NO_CAUSE),
    _straggler(0, "forward", 25),
    _straggler(1, "forward", 25),
    _case(
        "topology.link.rate=500mbit",
        "model.param_mb=4",
        _ONE_BUCKET,
        name="slow link",
        accepted=("link_bandwidth",),
        possible=("link_latency",),
        expected_ms=_transfer_ms(4, 500),
        attributed_ms=loss_ms(*_LINK),
    ),
    _case(
        "model.param_mb=0.5",
        "model.layers=64",
        "model.compute_ms=10",
        "ddp.bucket_cap_mb=0.001",
        name="tiny buckets",
        accepted=("link_latency",),
        possible=("strategy_overhead", "overlap", "host", "link_bandwidth", "straggler", "neighbours"),
    ),
    _case(
        "topology.link.rate=1gbit",
        "model.param_mb=2",
        _ONE_BUCKET,
        "accumulation_steps=4",
        "inject.wrong_no_sync=true",
        name="no_sync left out",
        accepted=("link_bandwidth",),
        possible=("link_latency",),
        expected_ms=_transfer_ms(2, 1000, times=4),
        attributed_ms=loss_ms(*_LINK),
    ),
    _stall("input", 25),
    _stall("host", 25),
    _case(
        "inject.contention=2",
        "measure.rounds_min=3",
        "measure.budget_s=14",
        name="busy processes",
        accepted=NO_CAUSE,
        contended=True,
    ),
)
"""What `scaling selftest` runs."""
MORE: tuple[FaultCase, ...] = (
    _case(
        "topology.link.rate=1gbit",
        "model.param_mb=1",
        _ONE_BUCKET,
        "inject.rank=1",
        "inject.link_rate=100mbit",
        name="one host's link at a tenth",
        accepted=("slow_path",),
        possible=_LINK,
        expected_ms=_transfer_ms(1, 100),
        attributed_ms=loss_ms(*_LINK),
    ),
)
"""What `--full` adds, beside cases of real models (scaling.analysis.selftest.zoo)."""
