"""Results of several runs or variants: studies of separate launches, strategies side by side, tables of cases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from scaling.analysis.results.measured import AtSize, Measured
from scaling.analysis.results.point import Degrees, PeakMemory, Point
from scaling.settings.cases import Try, Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun(AtSize):
    """The launches at one world size."""

    id: str
    path: str
    batch: int | None
    """Samples of a rank in a step; None where they were not seen."""
    launch_ms: tuple[float, ...]
    """Mean plain step of each launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a study was made from, and what its intervals cover."""

    runs: tuple[StudyRun, ...]
    base_world_size: int
    covers: str
    """`launches`: the intervals of steps, efficiencies and speedups cover what differs from launch to launch;
    `within`: there is one launch at each world size, and they cover what differs within it only."""
    launch_spread: float | None
    """Standard deviation of a launch's step over launches of the same world size, as a fraction; pooled over world
    sizes. None with one launch at each."""
    degrees: int
    """Degrees of freedom of `launch_spread`: launches less world sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyAtSize(AtSize):
    """One strategy against the first, at one world size."""

    throughput: Measured | None = None
    """Samples a second over the first strategy's, paired by round; 1 for the first itself. None: not measured."""
    distinguishable: bool = False
    """Whether the interval lies further from 1 than equal blocks of the first differ (the A/A floor)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyResult:
    """One strategy: all that a run of it alone would say of its world sizes."""

    parallel: Degrees
    """At the largest world size."""
    points: tuple[Point, ...]
    memory: PeakMemory
    """At the largest world size."""
    against_first: tuple[StrategyAtSize, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles over the requests of all ranks; None where there were too few requests for one."""

    p50: Measured | None = None
    p90: Measured | None = None
    p99: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult(AtSize):
    """One batch under one setting, on every rank of a world size."""

    batch: int
    """Samples of a rank in one request, or in one step over all accumulation steps."""
    precision: str
    status: str
    """done, or how it failed: oom, lost, failed, ..."""
    samples_per_s: Measured | None = None
    """Throughput of all ranks together."""
    efficiency: Measured | None = None
    """`samples_per_s` over that of one rank of the same case times the ranks; None where one rank was not measured."""
    peak_bytes: int | None = None
    """Peak memory of the rank that used most."""
    knee: bool = False
    """Whether this is the smallest batch with about all of the best throughput."""
    error: str | None = None

    VARIED: ClassVar[tuple[str, ...]]
    """Fields that a run may vary beside the batch."""

    @property
    def setting(self) -> dict[str, str | int | bool]:
        """All of a case but its batch and world size: rows of equal settings are compared by batch."""
        return {name: getattr(self, name) for name in self.VARIED}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCase(CaseResult):
    """Replicas of a model that answer requests."""

    VARIED = ("precision", "autocast", "compile")
    autocast: bool
    compile: bool
    latency_ms: Latency = field(default_factory=Latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase(CaseResult):
    """Training steps under DDP."""

    VARIED = ("precision", "checkpointing", "accumulation_steps")
    accumulation_steps: int
    checkpointing: bool
    step_ms: Measured | None = None
    exposed_ms: Measured | None = None
    """How long a step waits for communication, late peers included; mean over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch(Variant):
    """The largest batch of a variant that fits, a rank and step."""

    limit_bytes: int | None
    found: int
    proved: int | None
    """Batch that ran in fresh processes, with a margin of memory."""
    step: int
    """Distance between batches at which the search ended."""
    tries: tuple[Try, ...] = ()
