"""Intervals from rounds."""

import numpy as np
import pytest

from scaling.analysis.results import Measured
from scaling.analysis.statistics.resampling import drawn, resampling_weights
from scaling.analysis.statistics.rounds import (
    MS,
    Rounds,
    chance,
    equal_arms_apart,
    level_of_each,
)

EXPERIMENTS = 2000


def one_launch(count):
    return np.zeros(count, dtype=np.int64)


def rounds_of(**values):
    arrays = {name: np.asarray(v, dtype=float) for name, v in values.items()}
    return Rounds(arrays, one_launch(len(next(iter(arrays.values())))))


def coverage(samples, truth):
    """Share of experiments (rows) whose interval for the mean holds the truth."""
    rounds = Rounds({}, one_launch(samples.shape[1]))  # independent rows may share their resampling
    found = [rounds.extend({"x": row}).measure("x") for row in samples]
    return np.mean([m.low <= truth <= m.high for m in found])


# What an interval promises


@pytest.mark.parametrize("count", [3, 4, 8, 20])
def test_95_percent_of_intervals_hold_the_truth(count):
    samples = np.random.default_rng(1).normal(10.0, 1.0, size=(EXPERIMENTS, count))
    assert coverage(samples, 10.0) == pytest.approx(0.95, abs=0.02)


def test_so_do_intervals_of_a_quantity_that_half_of_the_rounds_lack():
    samples = np.random.default_rng(2).normal(10.0, 1.0, size=(EXPERIMENTS, 8))
    samples[:, ::2] = np.nan
    assert coverage(samples, 10.0) == pytest.approx(0.95, abs=0.02)


def test_means_add_up_whatever_the_rounds():
    rng = np.random.default_rng(3)
    rounds = rounds_of(a=rng.normal(1, 1, 6), b=rng.normal(5, 1, 6))
    total = rounds.measure(lambda m: m["a"] + m["b"])
    assert total.value == pytest.approx(rounds.measure("a").value + rounds.measure("b").value)


def test_the_same_rounds_give_the_same_interval():
    assert rounds_of(x=[1, 2, 4]).measure("x") == rounds_of(x=[1, 2, 4]).measure("x")


# Too little to tell


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_rounds_bear_no_interval(count):
    found = rounds_of(x=[4.0, 6.0][:count]).measure("x")
    assert (found.low, found.high, found.n) == (None, None, count)
    assert found.value == np.mean([4.0, 6.0][:count])


def test_nor_do_fewer_than_three_rounds_that_have_the_quantity():
    found = rounds_of(x=[4.0, 6.0, *[np.nan] * 6]).measure("x")
    assert found.value == 5.0
    assert (found.low, found.high) == (None, None)


def test_a_round_without_the_quantity_is_left_out_of_its_mean():
    rounds = rounds_of(x=[1.0, np.nan, 3.0, np.nan, 5.0], y=[1.0] * 5)
    found = rounds.measure(lambda m: m["x"] + m["y"])
    assert found.value == 4.0
    assert found.low < 4.0 < found.high


@pytest.mark.parametrize("formula", ["nothing", "empty", lambda m: m["x"] / m["nothing"]])
def test_what_was_not_measured_is_unknown(formula):
    rounds = rounds_of(x=[1.0, 2.0, 3.0], empty=[np.nan] * 3)
    assert rounds.measure(formula) is None
    assert "empty" not in rounds
    assert "x" in rounds


# Several launches


def test_launches_are_drawn_first_and_rounds_within_each():
    launch = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])
    weights = resampling_weights(launch, seed=0)
    by_launch = np.stack([weights[:, launch == k].sum(axis=1) for k in range(3)], axis=1)
    assert (weights[0] == 1).all()
    assert (weights.sum(axis=1) == len(launch)).all()
    assert set(np.unique(by_launch)) == {0, 3, 6, 9}  # whole launches: none, once, twice, three times


def test_rounds_of_one_launch_are_no_independent_launches():
    between = np.repeat([0.0, 1.0, 2.0, 3.0], 5)  # all the variation is between the launches
    together = Rounds({"x": between}, np.repeat(np.arange(4), 5)).measure("x")
    as_one = Rounds({"x": between}, one_launch(20)).measure("x")
    assert together.n == 4
    assert together.half_width > 2 * as_one.half_width


@pytest.mark.parametrize("rounds", [2, 3, 6])
def test_two_launches_that_differ_hold_their_own_mean_as_often_as_said(rounds):
    """Each launch's rounds are drawn by themselves, so each costs a degree of freedom."""
    rng, launch = np.random.default_rng(5), np.repeat([0, 1], rounds)
    base, trials, held = Rounds({}, launch), 600, 0
    for _ in range(trials):
        found = base.extend({"x": 5.0 * launch + rng.standard_normal(2 * rounds)}).measure("x")
        held += found.low < 2.5 < found.high
    assert 0.93 < held / trials < 0.985


def test_another_level_takes_the_degrees_of_freedom_that_there_are():
    """Two launches of three rounds: four of them."""
    rounds = Rounds({"x": 10 + np.arange(6.0) % 4}, np.repeat([0, 1], 3))
    usual, strict = rounds.measure("x"), rounds.measure("x", level=level_of_each(8))
    assert strict.half_width / usual.half_width == pytest.approx(5.26 / 2.776, rel=1e-3)  # t at 0.625 and 5 %


def test_what_was_drawn_is_launches_from_three_on():
    launch = np.repeat([0, 1, 2], 4)
    assert drawn(launch) == (3, 1)
    assert drawn(launch[:8]) == (8, 2)
    assert drawn(launch[:4]) == (4, 1)
    assert Rounds({}, launch).count() == (3, 1)


def test_more_quantities_are_resampled_with_the_same_rounds():
    rounds = rounds_of(x=[1.0, 2.0, 4.0])
    same = rounds.extend({"y": np.array([1.0, 2.0, 4.0])})
    assert same.measure(lambda m: m["x"] - m["y"]) == Measured(0.0, 0.0, 0.0, 3)


def test_a_scale_brings_a_formula_to_another_unit():
    rounds = rounds_of(ns=[1e6, 2e6, 4e6])
    assert rounds.ratio("ns", scale=MS) == rounds.ratio("ns") * MS
    assert rounds.ratio("unknown", scale=MS) is None


# Comparing


def test_a_ratio_of_the_same_rounds_cancels_what_they_share():
    rng = np.random.default_rng(4)
    drift = np.exp(0.1 * rng.standard_normal(12))
    a, b = (drift * t * np.exp(0.005 * rng.standard_normal(12)) for t in (11.0, 10.0))
    paired = rounds_of(a=a, b=b).measure(lambda m: m["a"] / m["b"])
    apart = rounds_of(a=a, b=np.roll(b, 5)).measure(lambda m: m["a"] / m["b"])
    assert paired.low < 1.1 < paired.high
    assert paired.half_width < apart.half_width / 5
    assert paired.differs_from(1)
    assert not apart.differs_from(1)


# Rounds that were to have only some quantities


def test_a_comparison_within_the_whole_rounds_knows_no_drift():
    """`part` is measured in every fifth round; both grow tenfold over the run, and their ratio is 2 throughout."""
    pace = np.geomspace(1, 10, 40)
    whole = np.arange(40) % 5 == 0
    rounds = Rounds({"all": pace, "part": np.where(whole, 2 * pace, np.nan)}, one_launch(40), whole=whole)
    paired = rounds.ratio(lambda m: m.paired["part"] / m.paired["all"])
    assert (paired.value, paired.n) == (pytest.approx(2), 8)
    assert paired.half_width == pytest.approx(0, abs=1e-9)
    apart = rounds.ratio(lambda m: m["part"] / m["all"])
    assert apart.half_width > 0.5
    assert rounds.measure("all").n == 40


def test_every_draw_has_as_many_whole_rounds():
    whole = np.arange(40) < 6
    weights = Rounds({}, one_launch(40), whole=whole).weights
    assert set(weights[:, whole].sum(axis=1)) == {6.0}
    assert set(weights.sum(axis=1)) == {40.0}


def test_without_such_rounds_a_comparison_is_as_it_was():
    rounds = rounds_of(a=np.arange(1.0, 9), b=np.arange(2.0, 10))
    assert rounds.ratio(lambda m: m.paired["a"] / m.paired["b"]) == rounds.ratio(lambda m: m["a"] / m["b"])


def test_equal_arms_come_out_apart_by_no_more_than_is_said_in_95_of_100_runs():
    rng, held = np.random.default_rng(3), 0
    for seed in range(400):
        drift = rng.normal(0, 0.2, (4, 1))
        blocks = np.exp(drift + rng.normal(0, 0.05, (4, 6)))  # rounds x arms
        rounds = Rounds({str(k): blocks[:, k] for k in range(6)}, np.zeros(4, dtype=np.int64), seed=seed)
        apart = equal_arms_apart(rounds, [str(k) for k in range(6)])
        assert apart.n == 15
        held += abs(np.log(blocks[:, 0] / blocks[:, 1]).mean()) < np.log1p(apart.value)
    assert 0.92 <= held / 400 <= 0.98


def test_the_spread_of_equal_arms_takes_two_rounds_that_have_two_arms():
    of_one = Rounds({"a": np.ones(3)}, np.zeros(3, dtype=np.int64))
    assert equal_arms_apart(of_one, ["a", "b"]) is None
    apart = Rounds({"a": np.array([1.0, np.nan]), "b": np.ones(2)}, np.zeros(2, dtype=np.int64))
    assert equal_arms_apart(apart, ["a", "b"]) is None


def test_the_chance_of_a_number_is_that_of_its_interval():
    at_95 = Measured.around(2.0, 2.0, 5)
    assert chance(at_95) == pytest.approx(0.025)
    assert chance(at_95, 2.0) == pytest.approx(0.5)
    assert chance(Measured(2.0)) == 1.0


def test_a_mean_that_a_few_rounds_make_reaches_0():
    rounds = rounds_of(a=[10, 10, 10, 10, 10, 10, 10, 10], b=[10, 10, 13, 10, 10, 13, 13, 10], c=[11, 12] * 4)

    def longer(arm):
        return rounds.agreed(lambda m: m[arm] - m["a"], rounds.measure(lambda m: m[arm] - m["a"]))

    assert rounds.measure(lambda m: m["b"] - m["a"]).value == pytest.approx(1.125)
    assert not longer("b").surely_above(0)
    assert longer("c").surely_above(0)
