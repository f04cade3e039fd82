"""A run: what was measured, how it ended, and the whole of analysis.json."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.measured import Measured
from scaling.analysis.results.cases import Inference, LargestBatch, Training
from scaling.analysis.results.fabric import Fabric, Fits
from scaling.analysis.results.hosts import Host
from scaling.analysis.results.point import Point
from scaling.analysis.results.roofline import RooflineResult
from scaling.analysis.results.verdicts import Verdict
from scaling.analysis.traced import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What was measured, on what."""

    id: str
    model: str
    topology: str
    precision: str
    mode: str
    task: str
    backend: str
    device: str
    started: str
    duration_s: float
    synthetic: bool
    launches: int
    device_name: str = ""
    """What the device calls itself; empty where nobody asked it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What stands against the numbers."""

    contended_blocks: int
    dropped_samples: int
    clock_bound_us: float | None
    """How well other ranks' clocks are known against rank 0's; None where they were never compared."""
    device_clock_bound_us: float | None = None
    """How well a device's events are told in host time; None where stamps are the host's own."""
    reached: tuple[str, ...] = ()
    """How well the efficiency is known, and what knowing it better would take."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """How a trial ended."""

    world_size: int
    status: str
    error: str | None = None
    rank: int | None = None
    launches: tuple[int, ...] = ()
    """Those that its numbers come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """What one rank held at the first and the last block of a launch, and by how much it grew a step."""

    launch: int
    rank: int
    kind: str
    """`host` or `device`."""
    begin_bytes: int
    end_bytes: int
    steps: int
    growth_bytes_per_step: Measured
    leak: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The whole of analysis.json."""

    schema: int
    run: RunInfo
    points: tuple[Point, ...]
    fabric: Fabric
    fits: Fits
    inference: tuple[Inference, ...]
    verdicts: tuple[Verdict, ...]
    quality: Quality
    trials: tuple[TrialOutcome, ...]
    roofline: RooflineResult | None = None
    memory: tuple[MemoryGrowth, ...] = ()
    trace: tuple[Traced, ...] | None = None
    """What traces of other tools show beyond this, one object a world size; None for a run of one's own."""
    training: tuple[Training, ...] = ()
    largest_batch: tuple[LargestBatch, ...] = ()
    hosts: tuple[Host, ...] = ()
    """Beside each other, where ranks were spread over them."""

    @property
    def whole(self) -> bool:
        """Whether every trial and every case is done."""
        statuses = [trial.status for trial in self.trials]
        statuses += [case.status for cases in (self.inference, self.training) for case in cases]
        return set(statuses) <= {"done"}
