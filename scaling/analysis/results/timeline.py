"""Single steps: one that is typical, and all of one rank."""

from __future__ import annotations

from dataclasses import dataclass


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
class Timeline:
    """One typical step of a world size: the step whose length is nearest to the mean."""

    world_size: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHistory:
    """Plain and probe steps of rank 0 in the order in which they ran; columns of equal length.

    Parts are None in the steps of the plain arm, which takes two stamps only.
    """

    world_size: int
    columns: dict[str, tuple[float | None, ...]]
    """`time_s` since measuring began, launches end to end, `step_ms`, each part `<part>_ms`."""
    arm: tuple[str, ...]
    contended: tuple[bool | None, ...]
    """Whether other programs ran then; None where nothing says so (scaling/analysis/contention.py)."""
