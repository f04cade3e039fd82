"""What a rank found out about itself: check-<r>.json, roofline-<r>.json. Facts only; rules over them are elsewhere.

Times are integer ns, sizes bytes, work FLOP (a multiply-add is two). None is "not known here".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

DOCTOR = "doctor"
"""The plan's task when the ranks check themselves instead of training."""

MATMUL = "matmul_"
"""Followed by the number format: fp64, fp32, tf32, bf16, fp16."""
COPY = "copy"
TO_DEVICE_PINNED = "host_to_device_pinned"
TO_DEVICE_PAGEABLE = "host_to_device_pageable"
TO_HOST_PINNED = "device_to_host_pinned"
LAUNCH = "launch"
STEP_OPS = "step_ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The best that one kind of work reached on this rank while all ranks of the launch did the same.

    A ceiling is a maximum and disturbances only slow, so it is the best of `repeats`.
    """

    name: str
    unit: str
    """FLOP/s, bytes/s (a copy reads and writes: both count) or 1/s."""
    size: int
    """Side of the matrices, bytes of a buffer, or operators of a chain."""
    best: float
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """All calls of one operator in one layer, in one step."""

    name: str
    layer: str
    count: int
    flops: int
    bytes: int
    """Of all tensors it read and wrote; what stays in a cache is counted too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """Something in the step that costs more than it seems."""

    what: str
    where: str
    """file:line of the user's code, empty where only torch's was on the stack."""
    layer: str
    count: int
    """Times a step."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one training step asks of the device: operators, copies, and what was seen on the way."""

    batch: int
    precision: str
    operators: tuple[Operator, ...]
    sightings: tuple[Sighting, ...]
    input_bytes: int
    """Of a step's batches, fetched from the host."""
    same_shapes: bool
    """Whether two batches had the same shapes."""

    @property
    def flops(self) -> int:
        """Of the whole step."""
        return sum(o.flops for o in self.operators)

    @property
    def bytes(self) -> int:
        """Read and written by all operators."""
        return sum(o.bytes for o in self.operators)

    @property
    def calls(self) -> int:
        """Operators handed to the device."""
        return sum(o.count for o in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """Memory when a phase of the first step ended: what the process holds, and the device's peak within it."""

    phase: str
    host_bytes: int
    device_peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Timed steps of the bare module, phase stamps on."""

    step_ns: tuple[int, ...]
    input_ns: tuple[int, ...]
    double_batch_step_ns: tuple[int, ...] = ()
    """At twice the batch; empty where that did not fit into memory."""
    memory: tuple[PhaseMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One tensor of one layer: its digest says whether two are equal, its samples by how much they differ."""

    name: str
    digest: str
    samples: tuple[float | None, ...]
    """Evenly spaced elements; None is not finite."""
    error: float | None
    """|x - reference| / |reference|, Euclidean norms over at most 2^14 evenly spaced elements."""
    not_finite: int
    flushed: int
    """Elements that are zero where the reference's is not, of those compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityStep:
    """One seeded step against the float64 reference."""

    loss: float | None
    loss_error: float | None
    gradient_error: float | None
    weight_error: float | None
    worst_layer: str
    """The parameter whose gradient is furthest off."""
    digest: str
    """Of the loss, all gradients and all weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRecord:
    """The same seeded steps in one precision."""

    precision: str
    scale: float
    """Of the loss: the largest power of 16 up to 65536 with finite gradients (fp16), else 1; 0: none was."""
    layers: tuple[Layer, ...]
    """Outputs of the first forward, in order."""
    gradients: tuple[Layer, ...]
    """Of the first step, unscaled, in the order of the parameters."""
    steps: tuple[ParityStep, ...]
    repeat_parted: str
    """The first layer (or the step) in which a repetition was not bitwise the same; empty when it was."""
    step_ns: tuple[int, ...]
    peak_bytes: int | None
    """Device memory; None on a CPU, where a process has one peak for everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A message between two ranks while all others were idle; the best one-way time of several."""

    peer: int
    bytes: int
    duration_ns: int
    peer_access: bool | None = None
    """Whether the device can read the peer's memory directly (same host only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """roofline-<r>.json of a run: what the step asks for and what the device gives."""

    schema: int
    rank: int
    ceilings: tuple[Ceiling, ...]
    work: StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCheck:
    """check-<r>.json. What a stage that was not reached would have found is empty or None."""

    schema: int
    rank: int
    host: int
    stage: str
    """How far the rank came; `end` when it is whole."""
    facts: dict[str, Any]
    """Flat: versions, device, limits; `flags.*` are torch's, `env.*` the environment's."""
    clock_offset_ns: int = 0
    """Against rank 0, wall clocks."""
    clock_bound_ns: int = 0
    pairs: tuple[Pair, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    work: StepWork | None = None
    times: StepTimes | None = None
    model_error: str | None = None
    """Why the model's step could not be run."""
    parity: tuple[PrecisionRecord, ...] = field(default=())
    parity_left_out: dict[str, str] = field(default_factory=dict)
    """Formats that memory did not suffice for, with what was said."""
