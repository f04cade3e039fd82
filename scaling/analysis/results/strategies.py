"""Strategies that were measured side by side in one launch."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured
from scaling.analysis.results.point import Degrees, PeakMemory, Point


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
