"""A step compared with the ceilings of its device."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingResult:
    """The best rate of one kind of work on this device, of n tries (0: a data sheet): disturbances only slow down."""

    name: str
    unit: str
    size: int
    best: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of a step's time."""

    name: str
    """A key of `scaling.analysis.decompose.kernels.MEANS`."""
    ms: Measured
    share: float
    means: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowKernel:
    """One operator on the same shapes and types: what it took in a step, and what its ceiling allows."""

    operator: str
    shapes: str
    layer: str
    """The first that calls it; empty where that is not known, or outside of all."""
    layers: int
    calls: float
    ms: Measured
    """All calls of a step."""
    least_ms: Measured
    part: str
    """The name of the step's part that it belongs to."""
    elementwise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Where a step's time goes. The parts and what is not explained sum to the step."""

    parts: tuple[StepPart, ...]
    unexplained_ms: Measured
    slowest: tuple[SlowKernel, ...]
    """Those that lose most against their ceiling."""
    notes: tuple[str, ...]


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
    """What limits the step, as a sentence."""
    bound: str
    """compute, memory, launch, input, host_transfer, or `none`: no ceiling explains the step."""
    least_ms: dict[str, Measured]
    """By bound: the least time for that kind of work alone."""
    achieved_flop_s: Measured
    mfu: Measured | None
    """Model FLOPs utilisation: the step's FLOPs over what the peak would have done meanwhile. A forward that
    checkpointing runs again does not count."""
    ceilings: tuple[CeilingResult, ...]
    hfu: Measured | None = None
    """Hardware FLOPs utilisation: the same with all FLOPs that the device did."""
    peak: CeilingResult | None = None
    """The peak in this precision: the data sheet's, else the better of product and convolution, as measured."""
    peak_is: str = ""
    """What the peak is, as a phrase."""
    above: str = ""
    """Why a utilisation is above 1; empty where none is."""
    where: StepTime | None = None
    """None where no kernel was timed."""
