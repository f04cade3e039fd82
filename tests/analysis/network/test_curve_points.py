"""A curve between its points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.network.curve import Points


def points(times, sizes=None):
    sizes = sizes or tuple(1024 * 4**k for k in range(len(times)))
    return Points(sizes=tuple(sizes), times=np.array([times], dtype=float))


def test_at_its_own_sizes_it_is_what_was_measured():
    curve = points([5, 6, 9, 30, 100])
    assert [curve.at(size)[0] for size in curve.sizes] == pytest.approx([5, 6, 9, 30, 100])


def test_below_the_time_stays_and_above_the_bandwidth_does():
    curve = points([5, 9, 30])
    assert curve.at(8)[0] == 5
    assert curve.at(3 * curve.sizes[-1])[0] == pytest.approx(90)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=8))
def test_between_two_points_it_stays_between_their_times(times):
    curve = points(times)
    for (low, a), (high, b) in itertools.pairwise(zip(curve.sizes, times, strict=True)):
        found = [curve.at(size)[0] for size in np.linspace(low, high, 9)]
        assert found == pytest.approx(sorted(found, reverse=b < a))
        assert min(found) >= min(a, b) * (1 - 1e-9)
        assert max(found) <= max(a, b) * (1 + 1e-9)


def test_it_is_the_same_curve_as_scipys():
    from scipy.interpolate import PchipInterpolator  # takes a second to import

    rng = np.random.default_rng(0)
    for _ in range(20):
        times = np.exp(rng.uniform(0, 5, 7))
        curve = points(times.tolist())
        other = PchipInterpolator(np.log(curve.sizes), np.log(times))
        sizes = np.exp(rng.uniform(np.log(curve.sizes[0]), np.log(curve.sizes[-1]), 9))
        assert [curve.at(size)[0] for size in sizes] == pytest.approx(np.exp(other(np.log(sizes))))


def test_a_latency_and_a_bandwidth_are_followed_where_points_are_a_factor_of_four_apart():
    def time(size):
        return 20 + size / 1e4

    curve = points([time(1024 * 4**k) for k in range(10)])
    off = [abs(curve.at(s)[0] / time(s) - 1) for s in (3e3, 3e4, 2e5, 7e5, 3e6, 5e7)]
    assert max(off) < 0.04
    assert np.median(curve.left_out_errors()) < 0.1


def test_resampled_values_go_through_alike():
    both = Points(sizes=(1, 4, 16), times=np.array([[1.0, 2.0, 8.0], [2.0, 4.0, 16.0]]))
    assert both.at(7)[1] == pytest.approx(2 * both.at(7)[0])
