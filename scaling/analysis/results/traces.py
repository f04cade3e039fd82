"""What profiler traces show besides a run's results: the objects in `trace` of analysis.json."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured


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
    """Communication without concurrent compute."""
    exposed_transfer_ms: Measured | None
    exposed_skew_ms: Measured | None
    """This and the one before are None where collectives could not be matched across ranks."""
    hidden_ms: Measured
    """Communication during compute; part of compute."""
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
    """nccl-tests' size; None where the trace does not state it or ranks send different sizes."""
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
class TracedKind:
    """All collectives of one kind in one process group, a step; means over the ranks that have them.

    `group` is torch's description of it (`mesh_shard`) where ranks have several groups for the same, else its name.
    """

    collective: str
    group: str
    group_size: int | None
    calls: Measured
    """A step and rank."""
    bytes: int | None
    """nccl-tests' size of all of them, a step and rank; None where the trace does not state it."""
    busy_ms: Measured
    """Time on which at least one of them runs: the union of their spans."""
    exposed_ms: Measured
    """Of that, without concurrent compute."""
    hidden_ms: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Dilation:
    """Duration of compute kernels during communication, relative to the same kernels (name and grid) alone."""

    ratio: Measured
    kernels: int
    """Kernels seen with and without communication."""
    cost_ms: Measured
    """What this adds to a rank's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced(AtSize):
    """One job's traces."""

    device: str
    """`gpu` or `cpu`: whose events were counted."""
    missing_ranks: tuple[int, ...]
    ranks: tuple[TracedRank, ...]
    collectives: tuple[TracedCollective, ...]
    dilation: Dilation | None
    end_spread_us: Measured | None
    """How far apart a collective's ends lie on its ranks' own clocks."""
    kinds: tuple[TracedKind, ...] = ()
    """Longest first."""
