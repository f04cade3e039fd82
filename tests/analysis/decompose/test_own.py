"""Consecutive steps of a loop: which rounds are drawn together, and whether the intervals then hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.analysis.decompose.own import UNITS_ENOUGH, units
from scaling.analysis.statistics.rounds import Rounds


def autocorrelated(rng, rho, count, spread=0.05):
    """AR(1) around 1, stationary from the first on."""
    noise = rng.standard_normal(count)
    for k in range(1, count):
        noise[k] = rho * noise[k - 1] + (1 - rho**2) ** 0.5 * noise[k]
    return 1 + spread * noise


def rounds_of(steps, size=10):
    return steps[: len(steps) // size * size].reshape(-1, size).mean(axis=1)


def held(rng, rho, rounds, *, together=True):
    """Whether the interval of the mean step holds it."""
    values = rounds_of(autocorrelated(rng, rho, rounds * 10))
    launch = np.zeros(len(values), dtype=np.int64)
    unit = units(values, launch) if together else None
    found = Rounds({"plain": values}, launch, unit=unit).measure("plain")
    return found.low <= 1 <= found.high


@pytest.mark.parametrize(("rho", "rounds"), [(0.3, 6), (0.65, 6), (0.65, 40), (0.9, 40), (0.98, 200)])
def test_intervals_over_consecutive_steps_hold_the_truth(rho, rounds):
    """Lag-1 autocorrelations of steps were 0.3 to 0.65 on the machines that this was made on."""
    rng = np.random.default_rng(1)
    share = np.mean([held(rng, rho, rounds) for _ in range(60)])
    assert share >= 0.85


def test_single_rounds_as_units_would_not_do():
    alone, together = (
        np.mean([held(np.random.default_rng(k), 0.98, 200, together=t) for k in range(40)])
        for t in (False, True)
    )
    assert alone < 0.7
    assert together > 0.85


def test_independent_rounds_mostly_stay_apart():
    rng = np.random.default_rng(0)
    launch = np.zeros(64, dtype=np.int64)
    counts = [len(np.unique(units(1 + 0.01 * rng.standard_normal(64), launch))) for _ in range(100)]
    assert np.median(counts) == 64


def test_no_fewer_units_than_enough_and_none_across_launches():
    steps = np.concatenate([np.linspace(1, 2, 100), np.linspace(1, 2, 60)])  # a drift: never independent
    launch = np.repeat([0, 1], [100, 60])
    found = units(steps, launch)
    assert UNITS_ENOUGH <= len(np.unique(found)) < 2 * UNITS_ENOUGH
    assert not set(found[launch == 0]) & set(found[launch == 1])
    assert np.all(np.diff(found) >= 0)
