"""The search for the largest batch: what to try next, and what was found. Pure: no I/O, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.cases import Variant

SCHEMA = 1
RESOLUTION = 32
"""The search ends when it knows the largest batch to one part in so many, and small ones exactly."""
CEILING = 2**20
"""A batch that fits at this size is bounded by no memory worth searching for."""
MARGIN = 0.03
"""Of the limit that the proof in fresh processes leaves unused."""

MEASURE, SEARCH, PROVE = "measure", "search", "prove"
"""What a launch by cases is for."""
FITS, OOM, KILLED = "fits", "oom", "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One batch that was tried. `rank` is one that it did not fit on."""

    batch: int
    status: str
    """fits, oom, or killed: the process ended without a word, as under a cgroup's limit."""
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
        return min((t.batch for t in self.tries if t.status != FITS), default=None)

    @property
    def next(self) -> int | None:
        """What to try next: doubling until something does not fit, then halving what is between; None: known."""
        unit, low, high = self.variant.accumulation_steps, self.found, self.too_large
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
        return max(0, lowest - max(step(lowest, unit), int(lowest * MARGIN) // unit * unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """largest.json: the search, variant by variant."""

    schema: int
    limit_bytes: int | None
    items: tuple[Found, ...]
    failure: str | None = None
    """What ended the search, other than memory."""

    def proved(self) -> dict[Variant, int]:
        """What to measure up to: the candidates, which the measuring processes prove before anything else."""
        return {item.variant: item.candidate for item in self.items}


def step(batch: int, unit: int = 1) -> int:
    """How far apart batches are told from each other."""
    return max(1, batch // RESOLUTION // unit) * unit
