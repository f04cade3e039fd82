"""A step compared with the ceilings of its device."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured
from scaling.records.checkup import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingResult:
    """The best rate of one kind of work on this device, of n tries (0: a data sheet): disturbances only slow down."""

    name: str
    unit: str
    size: int
    best: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorResult(Operator):
    """One operator of the step with the least time that the ceilings allow it, and the ceiling that sets this time."""

    least_ms: Measured
    """Sum over all its calls."""
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
    top: tuple[OperatorResult, ...]
    """The operators with the longest least times."""
    hfu: Measured | None = None
    """Hardware FLOPs utilisation: the same with all FLOPs that the device did."""
    peak: CeilingResult | None = None
    """The peak in this precision: the data sheet's, else the better of product and convolution, as measured."""
    peak_is: str = ""
    """What the peak is, as a phrase."""
    above: str = ""
    """Why a utilisation is above 1; empty where none is."""
