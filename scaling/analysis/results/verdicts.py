"""Named causes, what to try, and whether either held."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something to change: exact overrides, the line of one's own code they stand for, the predicted gain.

    The gain is a ratio of throughputs: above 1 is faster.
    """

    overrides: str
    code: str
    predicted_gain: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A named cause at one world size. `share` is what removing it would save, over the plain step."""

    cause: str
    world_size: int
    share: Measured | None
    confidence: str
    evidence: tuple[str, ...]
    try_: tuple[Remedy, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestCase:
    """One injected cause and what was said of it."""

    name: str
    injected: str
    """Overrides."""
    accepted: tuple[str, ...]
    first: str
    """The first verdict's cause."""
    hit: bool
    false_alarms: tuple[str, ...]
    """Causes named that the arithmetic excludes."""
    expected_ms: float | None
    """What the fault costs a step by arithmetic."""
    attributed_ms: float | None
    error: float | None
    """attributed / expected - 1."""
    step_ms: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """How well the verdicts find what was put in on purpose."""

    schema: int
    cases: tuple[SelfTestCase, ...]
    hit_rate: float
    """A fraction of 1."""
    false_alarms: int
    attribution_error: float | None
    """Median of |error|."""
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A remedy measured beside the settings that it is to better. Gains are ratios of throughput, above 1 faster."""

    schema: int
    run: str
    world_size: int
    cause: str
    remedy: str
    """Overrides."""
    code: str
    predicted_gain: Measured | None
    measured_gain: Measured | None
    aa_floor: Measured | None
    """The present settings against themselves."""
    how: str
    """`interleaved` blocks of one launch, or `alternating` launches."""
    verdict: str
    """held, not_held or not_distinguishable."""
