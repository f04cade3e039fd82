"""A step against the ceilings of its device."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingResult:
    """The best that one kind of work reached on this device: best of n, disturbances only slow."""

    name: str
    unit: str
    size: int
    best: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorResult:
    """One operator of the step, all its calls: the least time that the ceilings allow it, and which one binds."""

    name: str
    layer: str
    count: int
    flops: int
    bytes: int
    least_ms: Measured
    bound: str
    """`compute`, `memory` or `launch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineResult:
    """A step of one rank, without DDP, against the ceilings of its device."""

    rank: int
    device: str
    precision: str
    batch: int
    flops: int
    bytes: int
    operators: int
    """Calls a step."""
    step_ms: Measured
    said: str
    """What binds it, in words."""
    bound: str
    """compute, memory, launch, input, host_transfer, or `none`: no ceiling explains the step."""
    least_ms: dict[str, Measured]
    """By bound: the least time of its kind of work, were there no other."""
    achieved_flop_s: Measured
    mfu: Measured | None
    """Achieved over the measured matrix-product ceiling of the precision."""
    ceilings: tuple[CeilingResult, ...]
    top: tuple[OperatorResult, ...]
    """The operators that must take longest."""
    mfu_at: dict[str, Measured] = field(default_factory=dict)
    """By world size: of the plain step, DDP and waiting included."""
