"""What profiler traces show besides a run's results (`trace` of analysis.json), and single steps of any run."""

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
    """Part of busy_ms without concurrent compute."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of one rank's typical step, ms from the step's first begin."""

    rank: int
    lane: str
    """`compute` or `link`."""
    name: str
    """input, forward, backward, exposed_transfer, exposed_skew, optimizer, host, bucket k, or a trace's compute."""
    begin_ms: float
    end_ms: float
    bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """The ranks that are drawn where there are too many for all, in the order in which they are drawn.

    A rank's own step is the step without what it waits for communication, and a host's is its ranks' mean.
    """

    slowest: tuple[int, ...]
    """Those with the longest own step, the longest first."""
    of_hosts: tuple[tuple[int, int], ...]
    """(host, its slowest rank) of the slowest other hosts, the slowest first; empty where hosts have one rank each."""
    typical: tuple[int, ...]
    """Those whose own step is nearest to the median rank's."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return (*self.slowest, *(rank for _, rank in self.of_hosts), *self.typical)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline(AtSize):
    """One typical step of a world size: the step whose length is closest to the mean."""

    spans: tuple[Span, ...]
    drawn: Drawn | None = None
    """None where all ranks are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHistory(AtSize):
    """Plain and probe steps of rank 0 in the order in which they ran; columns of equal length.

    Parts are None in the steps of the plain arm, which takes two stamps only.
    """

    columns: dict[str, tuple[float | None, ...]]
    """`time_s` since measuring began (launches joined end to end), `step_ms`, and `<part>_ms` for each part."""
    arm: tuple[str, ...]
    contended: tuple[bool | None, ...]
    """Whether other programs ran at the time; None where this is not known (scaling/analysis/quality/contention.py)."""
