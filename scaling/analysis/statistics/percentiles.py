"""Percentiles of many values, and medians of few, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.results.measured import Measured
from scaling.analysis.statistics.rounds import MS, Floats, interval

BEYOND_MIN = 1
"""A percentile needs at least this many values beyond it: p99 needs 100 values."""
BINS_MAX = 4096
"""Values are sorted into at most this many bins before rounds are resampled, so ranks are exact to 1/4096."""
MEDIAN_MIN = 6
"""With fewer values, no order statistics hold the median in 95 % of cases."""


def percentiles(
    values: Floats,
    unit: NDArray[np.integer],
    weights: Floats,
    shares: Sequence[float],
    units_groups: tuple[int, int],
) -> list[Measured | None]:
    """For each share, the value that this share of all values does not exceed, with its interval.

    `values` and `unit`, V: each value and the round that it is from. `weights`, (1 + resamplings) x rounds: as measured
    first. `units_groups`: as scaling.analysis.statistics.rounds.drawn returns them. None where fewer than BEYOND_MIN
    values lie beyond.
    """
    order = np.argsort(values, kind="stable")
    parts = np.array_split(order, min(len(order), BINS_MAX))
    counts = np.stack([np.bincount(unit[part], minlength=weights.shape[1]) for part in parts], axis=1)
    top = np.array([values[part[-1]] for part in parts])
    cumulated = np.cumsum(weights @ counts, axis=1)
    found: list[Measured | None] = []
    for share in shares:
        if len(values) * (1 - share) < BEYOND_MIN - 1e-9:
            found.append(None)
            continue
        place = (cumulated < share * cumulated[:, -1:] - 1e-9).sum(axis=1)
        at = top[np.minimum(place, len(top) - 1)]
        units, groups = units_groups
        found.append(interval(float(at[0]), at[1:], units, groups=groups, positive=True))
    return found


def median(values_ns: Sequence[int], scale: float = MS) -> Measured | None:
    """The median, ms, with the order statistics that hold it in about 95 % of cases; None without values."""
    values = sorted(v * scale for v in values_ns)
    n = len(values)
    if not n:
        return None
    middle = (values[(n - 1) // 2] + values[n // 2]) / 2
    if n < MEDIAN_MIN:
        return Measured(middle, n=n)
    low = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Measured(middle, values[low], values[n - 1 - low], n)
