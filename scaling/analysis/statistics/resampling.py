"""What is drawn together when an interval is made: launches, rounds, or units of several rounds. Pure."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.results.measured import LAUNCHES_MIN

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

RESAMPLES = 1000


def drawn(
    launch: Ints, unit: Ints | None = None, part: Ints | None = None, *, several: bool | None = None
) -> tuple[int, int]:
    """(units, groups): how many units `resampling_weights` draws, and from how many groups separately.

    `several`: whether launches are the units, which all rounds together decide; by default the given rounds do.
    """
    launches = np.unique(launch)
    if len(launches) >= LAUNCHES_MIN if several is None else several:
        return len(launches), 1
    units = len(launch) if unit is None else len(np.unique(unit))
    groups = len(launches) if part is None else len(np.unique(np.stack([launch, part]), axis=1).T)
    return units, max(groups, 1)


def resampling_weights(launch: Ints, seed: int, unit: Ints | None = None, part: Ints | None = None) -> Floats:
    """Rows of weights over rounds: the plain mean first, then RESAMPLES draws.

    With LAUNCHES_MIN launches or more, launches are drawn first and rounds within each (hierarchical
    bootstrap); with fewer, rounds within each launch, and the interval holds for these launches.
    Rounds of one `unit` are drawn together, and each `part` of a launch by itself. The array is read-only: rounds of
    one shape share it.
    """
    unit = np.arange(len(launch)) if unit is None else unit
    return _weights(
        tuple(launch.tolist()), seed, tuple(unit.tolist()), None if part is None else tuple(part.tolist())
    )


@functools.lru_cache(maxsize=32)
def _weights(
    launch_of: tuple[int, ...], seed: int, unit_of: tuple[int, ...], part_of: tuple[int, ...] | None
) -> Floats:
    """As `resampling_weights`, of what can be compared; an analysis asks for the same few several times."""
    launch, unit = np.array(launch_of, dtype=np.int64), np.array(unit_of, dtype=np.int64)
    launches = np.unique(launch)
    several = len(launches) >= LAUNCHES_MIN
    part = np.zeros_like(launch) if part_of is None or several else np.array(part_of, dtype=np.int64)
    groups = [np.unique(unit[(launch == k) & (part == p)]) for k in launches for p in np.unique(part)]
    members = np.array([unit == u for u in range(unit.max(initial=-1) + 1)], dtype=float)
    rng = np.random.default_rng(seed)
    weights = np.zeros((RESAMPLES + 1, len(launch)))
    weights[0] = 1.0
    for row in range(1, RESAMPLES + 1):
        for index in rng.integers(len(groups), size=len(groups)) if several else range(len(groups)):
            group = groups[index]
            if len(group):
                picks = rng.choice(group, size=len(group))
                weights[row] += np.bincount(picks, minlength=len(members)) @ members
    weights.flags.writeable = False
    return weights


UNITS_ENOUGH = 10
"""Rounds are not grouped into fewer units than this."""
FOLLOWS = 1.0
"""Units count as autocorrelated if their lag-1 autocorrelation exceeds this many standard errors, 1/sqrt(units).

Below the usual 1.96, because grouping too many costs little and grouping too few makes intervals too narrow."""


def units(values: Floats, launch: Ints) -> Ints:
    """The unit of each round. `values`: the mean step of each round in order of time, ns (NaN: none).

    The rounds of `scaling run` are separated in time and their arms are in random order, so each is a unit. Those of an
    own loop follow each other directly: what slows one down (another program, a longer sentence, a warmer chip) often
    slows the next one too. Rounds are therefore grouped, twice as many at a time, until the groups' means are no longer
    autocorrelated (batch means; A. M. Law, Simulation Modeling and Analysis, 5th ed., section 9.5.3), or until fewer
    than UNITS_ENOUGH groups would be left. A unit never spans two launches.
    """
    size = 1
    while len(_unit_means(values, launch, size * 2)) >= UNITS_ENOUGH and _follow(values, launch, size):
        size *= 2
    return _grouped(launch, size)


def _grouped(launch: Ints, size: int) -> Ints:
    """Units of `size` consecutive rounds of a launch; rounds left over at its end join the last unit."""
    unit_of = np.zeros(len(launch), dtype=np.int64)
    first = 0
    for number in np.unique(launch):
        rounds = np.flatnonzero(launch == number)
        count = max(1, len(rounds) // size)
        unit_of[rounds] = first + np.minimum(np.arange(len(rounds)) // size, count - 1)
        first += count
    return unit_of


def _unit_means(values: Floats, launch: Ints, size: int) -> Floats:
    unit = _grouped(launch, size)
    finite = np.isfinite(values)
    total = np.bincount(unit[finite], weights=values[finite], minlength=unit.max(initial=0) + 1)
    count = np.bincount(unit[finite], minlength=unit.max(initial=0) + 1)
    means: Floats = total[count > 0] / count[count > 0]
    return means


def _follow(values: Floats, launch: Ints, size: int) -> bool:
    """Whether the means of units of `size` rounds are autocorrelated."""
    means = _unit_means(values, launch, size)
    away = means - means.mean()
    spread = float(away @ away)
    return spread > 0 and float(away[1:] @ away[:-1]) / spread > FOLLOWS / len(means) ** 0.5
