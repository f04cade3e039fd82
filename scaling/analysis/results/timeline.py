"""Single steps: a typical one on all ranks, and all steps of one rank."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize


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
