"""The search for the largest batch: what to try next, and what was found. Pure: no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.cases import Variant, ladder

SCHEMA = 1
RESOLUTION = 32
"""The search ends when it knows the largest batch to one part in so many, and small ones exactly."""
CEILING = 2**20
"""A batch that fits at this size is bounded by no memory worth searching for."""
MARGIN = 0.03
"""Of the limit that the proof in fresh processes leaves unused."""
LAUNCHES_MAX = 12
"""Each launch of the search but the last died of a batch that was too large: a search needs fewer."""
PROOFS_MAX = 4

MEASURE, SEARCH, PROVE = "measure", "search", "prove"
"""What a launch by cases is for."""
FITS, OOM, KILLED, FAILED = "fits", "oom", "killed", "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One batch that was tried. `rank` is one that it did not fit on."""

    batch: int
    status: str
    """fits, oom, killed (the process ended without a word, as under a cgroup's limit), or failed: one sample a
    micro-step, with which the model cannot train, as with batch normalisation."""
    rank: int | None = None
    peak_bytes: int | None = None
    """The largest rank's, where it fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is known of one variant's largest batch, samples a rank and step."""

    variant: Variant
    tries: tuple[Try, ...] = ()
    proved: int | None = None
    """What ran in fresh processes within the limit less MARGIN; None while not proved."""
    refuted: tuple[int, ...] = ()
    """What did not."""

    @property
    def found(self) -> int:
        """The largest that fitted; 0: none did."""
        return max((t.batch for t in self.tries if t.status == FITS), default=0)

    @property
    def too_large(self) -> int | None:
        """The smallest that did not fit."""
        return min((t.batch for t in self.tries if t.status in (OOM, KILLED)), default=None)

    @property
    def too_small(self) -> int:
        """The largest that the model cannot train with, whatever the memory; 0: none."""
        return max((t.batch for t in self.tries if t.status == FAILED), default=0)

    @property
    def next(self) -> int | None:
        """What to try next: doubling until something does not fit, then halving what is between; None: known."""
        unit, high = self.variant.accumulation_steps, self.too_large
        low = max(self.found, self.too_small)
        if high is None:
            return None if low >= CEILING else max(unit, 2 * low)
        if high - low <= step(low, unit):
            return None
        return (low + high) // 2 // unit * unit

    @property
    def candidate(self) -> int:
        """What to prove: the largest that fitted, or a step below the smallest that was refuted."""
        unit = self.variant.accumulation_steps
        if not self.refuted:
            return self.found
        lowest = min(self.refuted)
        lower = lowest - max(step(lowest, unit), int(lowest * MARGIN) // unit * unit)
        return lower if lower > self.too_small else 0

    @property
    def rungs(self) -> tuple[int, ...]:
        """Batches to measure, up to the candidate, which the measuring processes prove before anything else."""
        rungs = ladder(self.candidate, self.variant.accumulation_steps)
        return tuple(batch for batch in rungs if batch > self.too_small)


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """largest.json: the search, variant by variant."""

    schema: int
    limit_bytes: int | None
    items: tuple[Found, ...]
    failure: str | None = None
    """What ended the search, other than memory."""

    def rungs(self) -> dict[Variant, tuple[int, ...]]:
        """What to measure of each variant."""
        return {item.variant: item.rungs for item in self.items}


def step(batch: int, unit: int = 1) -> int:
    """How far apart batches are told from each other."""
    return max(1, batch // RESOLUTION // unit) * unit
