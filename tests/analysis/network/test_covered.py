"""Integrals over how many intervals are open."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.analysis.network.shared_link import covered, equal_parts


def row(*values):
    return np.array([values], dtype=float)


def test_a_window_is_covered_where_any_interval_is_open():
    # open from 0 to 10 and from 30 to 40
    found = covered(row(0, 5, 30), row(8, 10, 40), row(0, 2, 6, 10, 35), row(50, 4, 33, 30, 35))
    assert found[0].tolist() == [20, 2, 7, 0, 0]


def test_what_is_shared_has_equal_parts_that_add_up_to_the_whole():
    begin, end = row(0, 4, 20), row(12, 16, 25)
    parts = covered(begin, end, begin, end, equal_parts)
    assert parts[0].tolist() == [8, 8, 5]
    assert parts.sum() == covered(begin, end, row(0), row(30)).sum()


def test_steps_are_seen_each_by_itself():
    begin, end = np.array([[0.0, 1.0], [5.0, 0.0]]), np.array([[1.0, 2.0], [6.0, 4.0]])
    low, high = np.zeros((2, 1)), np.full((2, 1), 10.0)
    assert covered(begin, end, low, high)[:, 0].tolist() == [2, 5]


def test_an_interval_of_no_length_covers_nothing():
    assert covered(row(3, 3), row(3, 3), row(0), row(9))[0, 0] == 0


def test_stamps_of_a_clock_that_runs_for_long_lose_nothing():
    at = 3e15  # a month, ns
    found = covered(row(at), row(at + 10), row(at - 5), row(at + 7))
    assert found[0, 0] == pytest.approx(7)
