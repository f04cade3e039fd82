"""How far the ranks' own steps are apart, of more ranks than a table can show."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """One rank's own step."""

    rank: int
    step_ms: Measured
    ratio: Measured
    """Relative to the median rank of each round."""
    slow: bool
    """Whether it is slower than the median rank by more than chance, among all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSteps:
    """A host and the slowest of its ranks."""

    host: int
    hostname: str
    ranks: int
    """Of this host, in all."""
    ratio: float
    """Mean of its ranks' own steps over the median rank's."""
    slowest: tuple[OwnStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpread:
    """The own steps of all ranks at the largest world size: without DDP, while every rank is at work.

    Each rank's is its mean over the rounds; percentiles are over ranks.
    """

    world_size: int
    least_ms: float
    p5_ms: float
    median_ms: float
    p95_ms: float
    most_ms: float
    slow: int
    """Ranks that are slower than the median rank by more than chance."""
    edges_ms: tuple[float, ...]
    """Of equally wide bins from the least to the most."""
    counts: tuple[int, ...]
    """Ranks in each bin."""
    hosts: tuple[HostSteps, ...]
    """Those with the slowest ranks, the slowest first."""
