"""Ranks that wait for each other inside a step."""

from __future__ import annotations

import numpy as np

from scaling.analysis.network.replay import Barrier

MS = 1e6
START = np.zeros((1, 3))


def barrier(begin, end):
    return Barrier.of(np.array([begin]) * MS, np.array([end]) * MS, START)


def test_all_go_on_when_the_last_one_has_come():
    met = barrier(begin=[1, 40, 2], end=[41, 41, 41])
    assert met.awaited.waited(np.array([[1, 40, 2]]) * MS, np.array([[41, 41, 41]]) * MS).tolist() == [
        [39e6, 0, 38e6]
    ]
    assert met.transfer.tolist() == [[MS, MS, MS]]
    assert met.passed(START).tolist() == [[40e6, MS, 39e6]]


def test_without_its_lateness_the_others_go_on_when_they_come():
    met = barrier(begin=[1, 40, 2], end=[41, 41, 41]).with_mean([1], np.array([0, 2]))
    assert (met.passed(START) + met.at).tolist() == [[3e6, 3e6, 3e6]]


def test_a_rank_that_left_before_the_late_one_came_did_not_wait_for_it():
    """As a root of NCCL's broadcast may: it is done when its data are on the way."""
    met = barrier(begin=[1, 40, 2], end=[3, 41, 41])
    assert met.passed(START + np.array([[0, 60 * MS, 0]])).tolist() == [[2 * MS, 61 * MS, 99 * MS]]
