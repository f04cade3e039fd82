"""What a rank found out about itself: check-<r>.json, roofline-<r>.json. Facts only; scaling.analysis has the rules.

Times are integer ns, sizes bytes, work FLOP (a multiply-add counts as two). None means not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1

DOCTOR = "doctor"
"""The plan's task where the ranks check themselves instead of training."""

MATMUL, CONVOLUTION = "matmul_", "convolution_"
"""Followed by the number format: fp64, fp32, tf32, bf16, fp16."""
DATA_SHEET = "data_sheet_"
"""Likewise; nothing that a rank measured, but a ceiling among the others in a result."""
COPY = "copy"
TO_DEVICE_PINNED = "host_to_device_pinned"
TO_DEVICE_PAGEABLE = "host_to_device_pageable"
TO_HOST_PINNED = "device_to_host_pinned"
LAUNCH = "launch"
STEP_OPS = "step_ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """The best rate that this rank reached at one kind of work while all ranks of the launch did the same.

    Disturbances can only slow the work, so the best of `repeats` measurements counts.
    """

    name: str
    """COPY, LAUNCH or another name of this module; MATMUL and CONVOLUTION are followed by a number format."""
    unit: str
    """FLOP/s, bytes/s (what a copy reads and what it writes both count) or 1/s."""
    size: int
    """Side of the matrices, channels of a convolution, bytes of a buffer, or operators in a chain."""
    best: float
    """In `unit`."""
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InLayer:
    """Something that a step does in one layer, and how often."""

    layer: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(InLayer):
    """All calls of one operator in one layer, in one step."""

    name: str
    flops: int
    bytes: int
    """All tensors that it read and wrote, those that stay in a cache included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting(InLayer):
    """Something in the step that may cost more than it seems."""

    what: str
    where: str
    """file:line of the user's code; empty where only torch's code was on the stack."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one training step asks of the device: operators, copies, and suspicious code."""

    batch: int
    precision: str
    operators: tuple[Operator, ...]
    sightings: tuple[Sighting, ...]
    input_bytes: int
    """Size of the batches that a step fetches from the host."""
    same_shapes: bool
    """Whether two batches had the same shapes."""
    recomputed_flops: int = 0
    """Part of `flops` that ran a forward again in backward (activation checkpointing)."""

    @property
    def flops(self) -> int:
        """Work of the whole step, as the device did it."""
        return sum(o.flops for o in self.operators)

    @property
    def convolves(self) -> bool:
        """Whether any of that work is a convolution's."""
        return any(o.flops and o.name.startswith("convolution") for o in self.operators)

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
    """Memory when a phase of the first step ended."""

    phase: str
    host_bytes: int
    """What the process held then."""
    device_peak_bytes: int | None
    """The device's peak within the phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Timed steps of the module without DDP, with stamps at the phases."""

    step_ns: tuple[int, ...]
    input_ns: tuple[int, ...]
    double_batch_step_ns: tuple[int, ...] = ()
    """At twice the batch; empty where that did not fit into memory."""
    memory: tuple[PhaseMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One tensor of one layer. Two with one digest are equal; the samples show by how much others differ."""

    name: str
    digest: str
    samples: tuple[float | None, ...]
    """Evenly spaced elements; None for one that is not finite."""
    error: float | None
    """|x - reference| / |reference|, Euclidean norms over at most 2^14 evenly spaced elements."""
    not_finite: int
    """Elements that are infinite or NaN."""
    flushed: int
    """Compared elements that are zero where the reference's are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityErrors:
    """How far seeded steps are from the float64 reference. Errors are relative; None where a value is not finite."""

    loss_error: float | None
    """|loss - reference| / |reference|."""
    gradient_error: float | None
    """|g - reference| / |reference| over all parameters."""
    weight_error: float | None
    """As the gradients' error, over the weights after the step."""
    worst_layer: str
    """The parameter whose gradient is furthest from the reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityStep(ParityErrors):
    """One seeded step against the float64 reference."""

    loss: float | None
    digest: str
    """Covers the loss, all gradients and all weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRecord:
    """Results of the seeded steps in one precision."""

    precision: str
    scale: float
    """The loss's factor: in fp16 the largest power of 16 up to 65536 with finite gradients, 0 where none is; else 1."""
    layers: tuple[Layer, ...]
    """Outputs of the first forward pass, in order."""
    gradients: tuple[Layer, ...]
    """The first step's, unscaled, in the order of the parameters."""
    steps: tuple[ParityStep, ...]
    repeat_parted: str
    """The first layer, or step, at which a repetition was not bitwise equal; empty where all of it was."""
    step_ns: tuple[int, ...]
    peak_bytes: int | None
    """Device memory; None on a CPU, where a process has a single peak for all that it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A message between two ranks while all others were idle."""

    peer: int
    bytes: int
    duration_ns: int
    """One way; the best of several."""
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
class Kernel:
    """One operator on the same shapes and types, in a step."""

    key: str
    """As the simulated device's table has it: "aten::mm|Float 8,4;Float 4,2"."""
    operator: str
    calls: float
    """A step."""
    time_ns: int
    """Median time of one call."""
    flops: int
    bytes: int
    """Read and written by one call."""
    layer: str = ""
    """The first layer that calls it; empty outside of all layers, and where it was not recorded."""
    layers: int = 0
    """In how many layers it runs; 0: not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """kernels-0.json of a run: what each operator of a step takes on rank 0."""

    schema: int
    batch: int
    precision: str
    step_ns: int
    """Time of a step without timed operators."""
    kernels: tuple[Kernel, ...]
    slept_ns: int = 0
    """Part of `step_ns` in which a synthetic model sleeps: no operator."""
    queued_ns: int = 0
    """What the device takes for the step where the host has queued all of it before; 0: not measured, or no device."""

    @property
    def sum_ns(self) -> float:
        """All operators of a step together; near `step_ns` without sleeps where the host keeps the device busy."""
        return sum(kernel.calls * kernel.time_ns for kernel in self.kernels)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """One rank: its host, how far it came, and its facts."""

    rank: int
    host: int
    stage: str
    """`end` where the rank finished."""
    facts: dict[str, Any]
    """Flat: versions, device, limits; `flags.*` are torch's, `env.*` the environment's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCheck(RankFacts):
    """check-<r>.json. Fields of stages that were not reached are empty or None."""

    schema: int
    clock_offset_ns: int = 0
    """This rank's wall clock minus rank 0's."""
    clock_bound_ns: int = 0
    """How far the offset may be off."""
    pairs: tuple[Pair, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    work: StepWork | None = None
    times: StepTimes | None = None
    model_error: str | None = None
    """Why the model's step could not be run."""
    parity: tuple[PrecisionRecord, ...] = ()
    parity_left_out: dict[str, str] = field(default_factory=dict)
    """Formats that did not fit into memory, with the error."""
