"""A scaling study: separate launches of one script at several world sizes, read together."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize


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
