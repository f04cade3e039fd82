"""A number with its interval, and its arithmetic."""

import math

import pytest

from scaling.analysis.results import Measured
from scaling.analysis.results.measured import mean_of

TEN = Measured(10.0, 9.0, 11.0, 8)
BARE = Measured(10.0, n=8)


# Asking


def test_without_an_interval_nothing_is_sure():
    assert BARE.interval is None
    assert BARE.half_width is None
    assert BARE.log_half_width is None
    assert (BARE.least, BARE.most) == (10.0, 10.0)
    assert not BARE.holds(10.0)
    assert not BARE.surely_above(0.0)
    assert not BARE.surely_below(20.0)


def test_an_interval_is_asked_by_its_ends():
    assert TEN.interval == (9.0, 11.0)
    assert TEN.half_width == 1.0
    assert (TEN.least, TEN.most) == (9.0, 11.0)
    assert TEN.holds(9.0)
    assert not TEN.holds(8.9)
    assert TEN.surely_above(8.9)
    assert not TEN.surely_above(9.0)
    assert TEN.surely_below(11.1)
    assert not TEN.surely_below(11.0)


def test_two_numbers_are_apart_where_their_intervals_do_not_touch():
    assert TEN.surely_above(Measured(8.0, 7.5, 8.5))
    assert not TEN.surely_above(Measured(8.0, 7.0, 9.5))
    assert not TEN.surely_above(Measured(8.0))
    assert TEN.surely_below(Measured(12.0, 11.5, 12.5))


def test_a_logarithm_has_an_interval_only_above_zero():
    assert Measured(1.0, 0.5, 2.0).log_half_width == pytest.approx(math.log(2))
    assert Measured(1.0, 0.0, 2.0).log_half_width is None


@pytest.mark.parametrize(
    ("ratio", "floor", "clear"),
    [
        (Measured(1.1, 1.05, 1.15, 8), 0.0, True),
        (Measured(0.9, 0.85, 0.95, 8), 0.0, True),
        (Measured(1.1, 0.99, 1.21, 8), 0.0, False),
        (Measured(1.1, 1.05, 1.15, 8), 0.06, False),
        (Measured(0.9, 0.85, 0.95, 8), 0.06, False),
        (Measured(1.5), 0.0, False),
    ],
)
def test_a_ratio_is_distinguishable_when_its_interval_is_clear_of_one_and_of_the_floor(ratio, floor, clear):
    assert ratio.differs_from(1, by=floor) is clear


def test_a_departure_is_the_distance_to_the_farthest_end():
    assert Measured(1.01, 0.96, 1.06, 5).departure() == pytest.approx(0.06)
    assert Measured(1.01).departure() == pytest.approx(0.01)


# Making


def test_an_interval_around_a_value():
    assert Measured.around(10.0, 1.0, 8) == TEN
    assert Measured.around(10.0, None, 8) == BARE
    assert Measured.around_log(10.0, math.log(2), 8).interval == pytest.approx((5.0, 20.0))
    assert Measured.around_log(10.0, None, 8) == BARE


# With a plain number


def test_another_unit_keeps_what_is_unknown_unknown():
    assert Measured(2e6, 1e6, 3e6, 5) * 1e-6 == Measured(2.0, 1.0, 3.0, 5)
    assert 1e-6 * Measured(2e6, n=2) == Measured(2.0, n=2)
    assert Measured(5.0, 4.5, 5.5, 8) == TEN / 2


def test_what_turns_the_order_around_swaps_the_ends():
    assert Measured(-10.0, -11.0, -9.0, 8) == -TEN
    assert Measured(-20.0, -22.0, -18.0, 8) == TEN * -2
    assert Measured(2.0, 1.0, 3.0, 8) == 12 - TEN
    assert Measured(9.9, 9.0, 11.0, 8) == 99 / TEN


def test_a_sum_with_a_number_moves_both_ends():
    assert Measured(11.0, 10.0, 12.0, 8) == TEN + 1
    assert 1 + TEN == TEN + 1
    assert Measured(9.0, 8.0, 10.0, 8) == TEN - 1
    assert TEN.mapped(lambda x: x**2) == Measured(100.0, 81.0, 121.0, 8)


def test_a_quotient_by_what_may_be_zero_has_no_interval():
    assert 20 / Measured(10.0, 0.0, 20.0, 3) == Measured(2.0, n=3)
    assert Measured(2.0, n=8) == 20 / BARE


# With another one


def test_independent_errors_add_in_quadrature():
    other = Measured(4.0, 3.25, 4.75, 3)
    assert TEN + other == Measured(14.0, 12.75, 15.25, 3)
    assert TEN - other == Measured(6.0, 4.75, 7.25, 3)
    assert sum([TEN, other]) == TEN + other


def test_of_a_ratio_the_relative_ones():
    ratio = TEN / Measured(5.0, 5.0, 5.0, 3)
    assert ratio == Measured(2.0, 1.8, 2.2, 3)
    assert (TEN / TEN).half_width == pytest.approx(0.1 * 2**0.5)


@pytest.mark.parametrize("combined", [TEN + BARE, TEN - BARE, TEN / BARE, BARE / TEN])
def test_one_unknown_error_leaves_the_result_without_an_interval(combined):
    assert combined.interval is None
    assert combined.n == 8


def test_errors_in_common_do_not_average_out():
    assert mean_of([TEN, Measured(20.0, 18.0, 22.0, 3)]) == Measured(15.0, 13.5, 16.5, 3)
    assert mean_of([TEN, Measured(20.0, n=3)]) == Measured(15.0, n=3)


# Less sure


def test_a_bound_takes_nothing_below_zero():
    assert Measured(5.0, 4.0, 6.0).widened(24.0) == Measured(5.0, 0.0, 30.0)
    assert Measured(0.5, -1.0, 2.0).widened(24.0) == Measured(0.5, -1.0, 26.0)
    assert BARE.widened(1.0) == BARE


def test_a_stretched_interval_keeps_its_sides_in_proportion():
    assert Measured(10.0, 9.0, 12.0, 4).stretched(2) == Measured(10.0, 8.0, 14.0, 4)


def test_an_error_of_the_model_is_added_on_either_side():
    assert Measured(100.0, 97.0, 104.0, 4).with_error(3.0).high == pytest.approx(105.0)
    assert Measured(100.0, 97.0, 103.0, 4).with_error(4.0).low == pytest.approx(100 / 1.05)
    assert Measured(1.0, 0.5, 1.5).with_error(10.0).low > 0
    assert Measured(0.0, -3.0, 3.0).with_error(4.0) == Measured(0.0, -5.0, 5.0)
    assert BARE.with_error(4.0) == BARE


def test_an_absolute_figure_claims_no_more_than_equal_blocks_agree():
    lucky, wide = Measured(100.0, 99.9, 100.1, 3), Measured(100.0, 95.0, 104.0, 3)
    assert lucky.no_finer(0.01) == Measured(100.0, 99.0, 101.0, 3)
    assert wide.no_finer(0.01) == wide
    assert Measured(100.0).no_finer(0.01) == Measured(100.0)


def test_what_cannot_be_below_a_bound_has_no_interval_below_it():
    assert Measured(1.0, -0.5, 2.5).not_below(0.0) == Measured(1.0, 0.0, 2.5)
    assert TEN.not_below(0.0) == TEN
    assert BARE.not_below(0.0) == BARE


# Shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (Measured(66.21, 65.4, 67.0), "66.2 ±0.8"),
        (Measured(66.21, 65.07, 67.35), "66.2 ±1.1"),
        (Measured(1234.5, 900.0, 1569.0), "1234 ±334"),
        (Measured(66.21), "66.21"),
        (Measured(5.0, 5.0, 5.0), "5"),
    ],
)
def test_a_number_is_shown_with_the_digits_that_its_interval_justifies(number, shown):
    assert str(number) == shown


WILD = Measured(0.33, 0.01, 9.53, 3)


def test_an_interval_beyond_five_times_the_value_whose_ends_are_far_apart_tells_nothing():
    assert not WILD.tells
    assert str(WILD) == "unknown"
    assert not Measured(0.33, 0.16, 13.7, 3).tells  # a prediction's
    assert Measured(0.33, 0.07, 1.6, 3).tells
    assert Measured(4.0, 0.01, 7.99, 3).tells
    assert TEN.tells
    assert BARE.tells


def test_a_number_that_may_be_nothing_tells_how_much_it_is_at_most():
    assert Measured(0.1, -0.8, 1.0, 3).tells
    assert Measured(2.0, 0.0, 30.0, 3).tells


def test_what_tells_nothing_decides_nothing():
    assert not Measured(9.5, 1.5, 60.0, 3).surely_above(1.0)
    assert not Measured(0.1, 0.01, 0.9, 3).surely_below(1.0)
    assert not TEN.surely_above(WILD)
    assert not Measured(9.5, 1.5, 60.0, 3).differs_from(1.0)
