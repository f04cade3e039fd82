"""Runs by case: tables of batch, precision and what else was varied."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.results.measured import AtSize, Measured
from scaling.spec.batch_search import Try
from scaling.spec.cases import Variant


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceCase(CaseResult):
    """Replicas of a model that answer requests."""

    autocast: bool
    compile: bool
    latency_ms: Latency = field(default_factory=Latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCase(CaseResult):
    """Training steps under DDP."""

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
