"""The search for the largest batch that fits: the next batch to try, and the result. Pure: no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.settings.cases import Variant, ladder

SCHEMA = 1
RESOLUTION = 32
"""The search ends when it knows the largest batch to one part in 32; batches below 64 exactly."""
CEILING = 2**20
"""The search stops at this batch: a model that fits here is not limited by memory."""
MARGIN = 0.03
"""Fraction of the memory limit that the proof in fresh processes leaves unused."""
LAUNCHES_MAX = 12
"""Limit on the launches of a search. Each but the last ends with a batch that is too large, so fewer suffice."""
PROOFS_MAX = 4

MEASURE, SEARCH, PROVE = "measure", "search", "prove"
"""Purposes of a launch by cases."""
FITS, OOM, KILLED, FAILED, LATE = "fits", "oom", "killed", "failed", "late"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One batch that was tried. `rank`: a rank on which it did not fit."""

    batch: int
    status: str
    """fits, oom, killed (the process ended without a message, as under a cgroup's limit), or failed: the model
    cannot train with one sample a micro-step, for example because of batch normalisation, or late (it was not tried,
    since the search's time did not suffice."""
    rank: int | None = None
    peak_bytes: int | None = None
    """Peak memory of the rank that used most; None where the batch did not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSearch:
    """Search state of one variant; batches in samples per rank and step."""

    variant: Variant
    tries: tuple[Try, ...] = ()
    proved: int | None = None
    """Batch that ran in fresh processes within the limit less MARGIN; None until proved."""
    refuted: tuple[int, ...] = ()
    """Batches that failed that proof."""

    @property
    def found(self) -> int:
        """The largest batch that fitted; 0 if none did."""
        return max((t.batch for t in self.tries if t.status == FITS), default=0)

    @property
    def too_large(self) -> int | None:
        """The smallest batch that did not fit; None if all did."""
        return min((t.batch for t in self.tries if t.status in (OOM, KILLED)), default=None)

    @property
    def late(self) -> bool:
        """Whether the search ended for want of time."""
        return any(t.status == LATE for t in self.tries)

    @property
    def too_small(self) -> int:
        """The largest batch that is too small for the model to train with; 0 if there is none."""
        return max((t.batch for t in self.tries if t.status == FAILED), default=0)

    @property
    def next(self) -> int | None:
        """The next batch to try: double until one does not fit, then bisect. None when the search has ended."""
        if self.late:
            return None
        unit, high = self.variant.accumulation_steps, self.too_large
        low = max(self.found, self.too_small)
        if high is None:
            return None if low >= CEILING else max(unit, 2 * low)
        if high - low <= step(low, unit):
            return None
        return (low + high) // 2 // unit * unit

    @property
    def candidate(self) -> int:
        """The batch to prove: the largest that fitted, or a step below the smallest that was refuted."""
        unit = self.variant.accumulation_steps
        if not self.refuted:
            return self.found
        lowest = min(self.refuted)
        lower = lowest - max(step(lowest, unit), int(lowest * MARGIN) // unit * unit)
        return lower if lower > self.too_small else 0

    @property
    def rungs(self) -> tuple[int, ...]:
        """Batches to measure, up to the candidate. The measuring processes prove the candidate first."""
        rungs = ladder(self.candidate, self.variant.accumulation_steps)
        return tuple(batch for batch in rungs if batch > self.too_small)


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """Contents of largest.json: the search of each variant."""

    schema: int
    limit_bytes: int | None
    items: tuple[VariantSearch, ...]
    failure: str | None = None
    """What ended the search, other than memory."""

    def rungs(self) -> dict[Variant, tuple[int, ...]]:
        """Batches to measure of each variant."""
        return {item.variant: item.rungs for item in self.items}


def step(batch: int, unit: int = 1) -> int:
    """Distance between batches that the search distinguishes."""
    return max(1, batch // RESOLUTION // unit) * unit
