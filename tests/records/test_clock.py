"""Offsets of two kernels' clocks that drift: between comparisons, and before and after them."""

import numpy as np
import pytest

from scaling.records.format import ClockRecord
from scaling.records.rank_file import DRIFT, Shift

S, US = 1_000_000_000, 1_000
ORIGIN_NS = 10**15
AHEAD_NS = 7_000_000_000
PPM = 1e-6


def clock(at_ns, offset_ns, bound_ns):
    return ClockRecord(at="", offset_ns=round(offset_ns), bound_ns=bound_ns, time_ns=round(at_ns))


def compared(at_s, truth, bound_ns=20 * US, noise=0.0, seed=0):
    """Comparisons at these times; `truth`: the offset at a time, s; each off by up to `noise` of its bound."""
    rng = np.random.default_rng(seed)
    return [
        clock(ORIGIN_NS + s * S, truth(s) + noise * bound_ns * rng.uniform(-1, 1), bound_ns) for s in at_s
    ]


def drifting(ppm):
    return lambda s: AHEAD_NS + ppm * PPM * s * S


def errors_ns(shift, truth, at_s):
    at_s = np.asarray(at_s, dtype=float)
    stamps = (ORIGIN_NS + at_s * S).astype(np.int64)
    return np.abs(stamps - shift.at(stamps) - truth(at_s))


EARLY = [0.0, 1, 3, 7, 15, 31, 63]


def test_every_comparison_counts():
    truth = drifting(0)
    at_s = [0, 100, 200, 300]
    offsets = [AHEAD_NS, AHEAD_NS + 2_000 * US, AHEAD_NS + 2_100 * US, AHEAD_NS]  # a clock that warms up
    shift = Shift([clock(ORIGIN_NS + s * S, o, 20 * US) for s, o in zip(at_s, offsets, strict=True)])
    found = errors_ns(shift, truth, [0, 50, 100, 150, 200, 250, 300])
    assert found == pytest.approx(np.array([0, 1_000, 2_000, 2_050, 2_100, 1_050, 0]) * US, abs=2)


def test_after_the_last_it_goes_on_as_over_the_last_minute():
    def truth(s):  # 40 us a second at first, 20 from the hundredth on
        return AHEAD_NS + np.where(s < 100, 40 * US * s, 4_000 * US + 20 * US * (s - 100))

    shift = Shift(compared([0, 50, 100, 150, 200], truth))
    assert errors_ns(shift, truth, [200, 260, 320]).max() <= 2


def test_before_the_first_it_goes_on_as_over_the_first():
    truth = drifting(30)
    shift = Shift(compared([10, 80, 200], truth))
    assert errors_ns(shift, truth, [-20, 0, 5]).max() <= 2


@pytest.mark.parametrize("until_s", [5, 20, 60, 120])
@pytest.mark.parametrize("seed", range(5))
def test_a_short_loop_is_not_left_at_its_first_seconds(until_s, seed):
    """Bounds of 20 us, as over a network: what is left is within the bound that is told, and far below the drift."""
    truth = drifting(25)
    at_s = [s for s in EARLY if s < until_s]
    shift = Shift(compared(at_s, truth, noise=1.0, seed=seed))
    stamps_s = np.linspace(-0.5, until_s, 50)
    bound_ns = shift.bound_ns([round(ORIGIN_NS + s * S) for s in stamps_s])
    found = errors_ns(shift, truth, stamps_s)
    assert found.max() <= bound_ns
    assert found.max() < 25 * US * until_s / 2
    assert bound_ns < 25 * US * until_s


@pytest.mark.parametrize("seed", range(5))
def test_two_comparisons_close_together_make_no_rate_of_their_noise(seed):
    truth = drifting(20)
    shift = Shift(compared([0, 0.1], truth, noise=1.0, seed=seed))
    found = errors_ns(shift, truth, [10.0])
    assert found.max() <= (20 + 20 * 10 + 1) * US  # their noise alone would be 4,000
    assert found.max() <= shift.bound_ns([ORIGIN_NS, ORIGIN_NS + 10 * S])


def test_the_bound_grows_with_the_distance():
    shift = Shift(compared([0, 100], drifting(20)))
    at = [ORIGIN_NS, ORIGIN_NS + 100 * S]
    assert shift.bound_ns(at) == 20 * US
    assert shift.bound_ns([*at, ORIGIN_NS + 350 * S]) == pytest.approx(20 * US + 250 * 400, abs=1)
    assert shift.bound_ns([ORIGIN_NS - 50 * S, *at]) == pytest.approx(20 * US + 50 * 400, abs=1)


def test_compared_once_it_is_the_usual_drift_that_is_reckoned_with():
    shift = Shift(compared([0], drifting(0)))
    assert errors_ns(shift, drifting(0), [0, 10]).max() == 0
    assert shift.bound_ns([ORIGIN_NS, ORIGIN_NS + 10 * S]) == pytest.approx(20 * US + DRIFT * 10 * S, abs=1)


def test_a_clock_that_is_shared_is_known_to_its_bound_however_long_it_goes_on():
    shift = Shift([clock(ORIGIN_NS, 5 * US, 20 * US)])
    assert shift.still
    assert shift.bound_ns([ORIGIN_NS, ORIGIN_NS + 10**6 * S]) == 20 * US
    assert Shift([]).bound_ns([ORIGIN_NS]) is None


def test_kernels_that_were_booted_years_apart_lose_no_nanosecond():
    ahead_ns = 10**17 + 1
    shift = Shift([clock(ORIGIN_NS + ahead_ns + k * S, ahead_ns + 3 * k, 1) for k in range(3)])
    stamps = np.array([0, ORIGIN_NS + ahead_ns, ORIGIN_NS + ahead_ns + S], dtype=np.int64)
    assert shift.at(stamps).tolist() == [0, ORIGIN_NS, ORIGIN_NS + S - 3]


def test_a_clock_that_drifts_unevenly_is_noticed_and_its_bound_is_wider():
    """It warms up: half of its drift is over in the first third, which the middle comparison shows."""

    def truth(s):
        return AHEAD_NS + 300 * US * np.sqrt(np.asarray(s, dtype=float) / 300)

    shift = Shift(compared([0, 100, 300], truth))
    bend_ns = 300 * US * (np.sqrt(1 / 3) - 1 / 3)
    assert shift.bend_ns == pytest.approx(bend_ns - 40 * US, rel=0.01)
    found = errors_ns(shift, truth, np.arange(1, 300))
    assert found.max() > 20 * US  # more than any comparison's own bound
    assert found.max() <= shift.bound_ns([ORIGIN_NS, ORIGIN_NS + 300 * S])


@pytest.mark.parametrize("ppm", [0, 0.5, 30])
def test_an_even_drift_bends_nothing_whatever_the_comparisons_errors(ppm):
    for seed in range(5):
        shift = Shift(compared([0, 60, 120, 200, 300], drifting(ppm), noise=1.0, seed=seed))
        assert shift.bend_ns == 0
