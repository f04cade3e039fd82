"""Means of every rank's phases over resampled rounds, computed a stretch of them at a time.

For a thousand ranks one phase takes 8 MB (1,001 values a rank), and a prediction needs several of each arm. The rounds
that they are means of take a thirtieth of it, so only these are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.statistics.rounds import Floats, UnknownQuantityError

VALUES = 1 << 18
"""Numbers in an array over resampled rounds, ranks and buckets: 2 MiB, which a core's cache holds."""


@dataclass(frozen=True, slots=True)
class ByRank:
    """Phases of R ranks: the estimate first, then resampled values (S in all)."""

    values: Mapping[str, Floats]
    """By phase, rounds x R, ns; NaN where a round lacks it."""
    weights: Floats
    """S x rounds (statistics.rounds.resampling_weights)."""

    @classmethod
    def of(cls, values: Mapping[str, Floats], weights: Floats) -> ByRank:
        """UnknownQuantityError where a rank has a phase in no round."""
        for phase, of_ranks in values.items():
            if not np.isfinite(of_ranks).any(axis=0).all():
                raise UnknownQuantityError(phase)
        return cls(values, weights)

    def part(self, stretch: slice) -> dict[str, Floats]:
        """By phase, S' x R: a stretch of the S."""
        weights = self.weights[stretch]
        return {phase: _means(weights, values) for phase, values in self.values.items()}

    def mean(self) -> dict[str, Floats]:
        """By phase, S: the mean over the ranks."""
        width = next(iter(self.values.values())).shape[1]
        found: dict[str, list[Floats]] = {phase: [] for phase in self.values}
        for stretch in stretches(len(self.weights), width):
            for phase, values in self.part(stretch).items():
                found[phase].append(values.mean(axis=1))
        return {phase: np.concatenate(means) for phase, means in found.items()}

    def there(self) -> list[NDArray[np.bool_]]:
        """Which rounds have a rank's phase; what is the same for several ranks is named once."""
        found = [np.unique(np.isfinite(values), axis=1).T for values in self.values.values()]
        return [mask for masks in found for mask in masks]


def stretches(count: int, width: int) -> Iterator[slice]:
    """Stretches of `count` rows of `width` numbers, of about VALUES numbers each."""
    step = max(1, VALUES // max(width, 1))
    for begin in range(0, count, step):
        yield slice(begin, begin + step)


def _means(weights: Floats, values: Floats) -> Floats:
    """S' x R: means of the rounds in which a rank has a value (rounds x R)."""
    there = np.isfinite(values)
    if there.all():
        whole: Floats = weights @ values / weights.sum(axis=1, keepdims=True)
        return whole
    with np.errstate(invalid="ignore", divide="ignore"):
        some: Floats = weights @ np.where(there, values, 0.0) / (weights @ there)
    return some
