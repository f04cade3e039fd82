"""Named causes of lost efficiency, remedies, and checks of both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from scaling.analysis.results.measured import AtSize, Measured

NO_CAUSE = ("undecided", "scales_well", "optimizer", "launch_bound")
"""Verdicts that name no cause of a loss: the optimizer and launches are in every step, with one rank as with many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Something to change: exact overrides, the equivalent line in one's own code, the predicted gain.

    The gain is a ratio of throughputs: above 1 is faster.
    """

    overrides: str
    code: str
    predicted_gain: Measured | None = None
    assumes: str = ""
    """What the gain takes for granted, or what else the remedy changes; empty where nothing."""


NOTABLE = 0.03
"""A cause that costs a smaller share of the step gets no verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(AtSize):
    """A named cause at one world size. `share` is the fraction of the plain step that removing it would save."""

    cause: str
    share: Measured | None
    confidence: str
    evidence: tuple[str, ...]
    try_: tuple[Remedy, ...] = ()

    def as_hint(self, *why: str) -> Verdict:
        """No more than a hint, and why."""
        return replace(self, confidence="low", evidence=(*self.evidence, *why))


def named(
    cause: str,
    point: AtSize,
    share: Measured | None,
    evidence: tuple[str, ...],
    remedies: tuple[Remedy, ...] = (),
    confidence: str = "",
) -> Verdict:
    """A cause and its share of the step; by default, the confidence is high where the share is surely notable."""
    if not confidence:
        confidence = "high" if share is not None and share.surely_above(NOTABLE) else "medium"
    return Verdict(
        cause=cause,
        world_size=point.world_size,
        share=share,
        confidence=confidence,
        evidence=evidence,
        try_=remedies,
    )


def undecided(world_size: int, *evidence: str, confidence: str = "low") -> Verdict:
    """No cause can be named, and why."""
    return Verdict(
        cause="undecided", world_size=world_size, share=None, confidence=confidence, evidence=evidence
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestCase:
    """One injected cause and the verdicts on it."""

    name: str
    injected: str
    """Overrides."""
    accepted: tuple[str, ...]
    first: str
    """The first verdict's cause."""
    hit: bool
    false_alarms: tuple[str, ...]
    """Named causes that the arithmetic excludes, with more than low confidence."""
    expected_ms: float | None
    """What the fault adds to a step by arithmetic."""
    attributed_ms: float | None
    error: float | None
    """attributed / expected - 1."""
    step_ms: Measured
    sure_alarms: tuple[str, ...] = ()
    """Those of `false_alarms` that have high confidence. Each counts double."""
    contended: bool = False
    """Other programs ran beside the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """How well the verdicts find faults that were injected on purpose."""

    schema: int
    cases: tuple[SelfTestCase, ...]
    hit_rate: float
    """A fraction of 1."""
    false_alarms: int
    """Causes named falsely in all cases; one at high confidence counts double."""
    attribution_error: float | None
    """Median of |error|."""
    passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification(AtSize):
    """A remedy measured against the present settings. Gains are ratios of throughput: above 1 is faster."""

    schema: int
    run: str
    cause: str
    remedy: str
    """Overrides."""
    code: str
    predicted_gain: Measured | None
    measured_gain: Measured | None
    aa_floor: Measured | None
    """The present settings measured against themselves."""
    how: str
    """`interleaved` blocks of one launch, or `alternating` launches."""
    verdict: str
    """held, not_held or not_distinguishable."""
