"""Runs by case: tables of batch, precision and what else was varied."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles over the requests of all ranks; None where there were too few requests for one."""

    p50: Measured | None = None
    p90: Measured | None = None
    p99: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """Replicas of a model on every rank of a world size, at one batch."""

    world_size: int
    batch: int
    precision: str
    autocast: bool
    compile: bool
    status: str
    latency_ms: Latency = field(default_factory=Latency)
    samples_per_s: Measured | None = None
    """Of all ranks together."""
    peak_bytes: int | None = None
    knee: bool = False
    """The smallest batch with about all of the best throughput."""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Training steps under DDP at one batch."""

    world_size: int
    batch: int
    """Samples a rank and step, over all accumulation steps."""
    accumulation_steps: int
    precision: str
    checkpointing: bool
    status: str
    step_ms: Measured | None = None
    samples_per_s: Measured | None = None
    exposed_ms: Measured | None = None
    """What a step waits for communication, mean over ranks; late peers included."""
    peak_bytes: int | None = None
    knee: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTry:
    """One batch of a search."""

    batch: int
    status: str
    rank: int | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestBatch:
    """The largest batch that fits, a rank and step."""

    precision: str
    autocast: bool
    compile: bool
    checkpointing: bool
    accumulation_steps: int
    limit_bytes: int | None
    found: int
    proved: int | None
    """What ran in fresh processes, with a margin."""
    step: int
    """How finely batches were told apart."""
    tries: tuple[BatchTry, ...] = ()
