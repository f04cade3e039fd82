"""What existing traces show beyond a run's results: the objects in `trace` of analysis.json."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRank:
    """One rank's mean step; compute, exposed, copies, input, host, launch and idle add up to it (docs/traces.md)."""

    rank: int
    file: str
    steps: int
    events: int
    step_ms: Measured
    compute_ms: Measured
    exposed_ms: Measured
    """Communication with no compute beside it."""
    exposed_transfer_ms: Measured | None
    exposed_skew_ms: Measured | None
    """Both None where collectives could not be matched over ranks."""
    hidden_ms: Measured
    """Communication beside compute; part of compute."""
    copies_ms: Measured
    input_ms: Measured
    host_ms: Measured
    launch_ms: Measured
    idle_ms: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCollective:
    """One collective of one size in one group; times are means over instances and, but for transfer, ranks."""

    collective: str
    group: str
    group_size: int
    bytes: int | None
    """nccl-tests' size; None where the trace does not tell or ranks send unlike sizes."""
    count: int
    time_us: Measured
    transfer_us: Measured
    skew_us: Measured
    algbw_gbit_s: Measured | None
    busbw_gbit_s: Measured | None
    late_rank: int
    """The rank that came last most often."""
    late_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dilation:
    """Compute kernels beside communication against the same kernels (name and grid) alone."""

    ratio: Measured
    kernels: int
    """Kernels seen both ways."""
    cost_ms: Measured
    """What it adds to a step of a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaRank:
    """HolisticTraceAnalysis' temporal breakdown and overlap of one rank."""

    rank: int
    idle_us: float
    compute_us: float
    non_compute_us: float
    kernel_us: float
    idle_percent: float | None
    compute_percent: float | None
    non_compute_percent: float | None
    overlap_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaKernelType:
    """Its time by type of kernel, over all ranks."""

    kernel_type: str
    sum_us: float
    percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaKernel:
    """Its kernel breakdown."""

    name: str
    kernel_type: str
    rank: int
    sum_us: float
    max_us: float
    min_us: float
    mean_us: float
    std_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hta:
    """HolisticTraceAnalysis' quantities."""

    ranks: tuple[HtaRank, ...]
    kernel_types: tuple[HtaKernelType, ...]
    kernels: tuple[HtaKernel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One job's traces."""

    world_size: int
    device: str
    """`gpu` or `cpu`: whose events were counted."""
    missing_ranks: tuple[int, ...]
    ranks: tuple[TracedRank, ...]
    collectives: tuple[TracedCollective, ...]
    dilation: Dilation | None
    end_spread_us: Measured | None
    """How far apart a collective's ends lie on its ranks' own clocks."""
    hta: Hta | None = None
