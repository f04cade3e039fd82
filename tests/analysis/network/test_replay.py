"""Steps replayed from their ranks' own times."""

from __future__ import annotations

import numpy as np

from scaling.analysis.network.replay import Replay


def steps(ready, compute_end, transfer, start=None):
    return Replay(ready=ready, compute_end=compute_end, transfer=transfer, start=start)


def period(*times):
    return steps(*times).period()


def period_without(late, *times):
    return steps(*times).without(late).period()


def test_a_step_lasts_until_its_last_bucket_or_the_last_compute():
    ready = np.array([[[2.0], [5.0]]])  # one bucket on two ranks
    assert period(ready, np.array([[6.0, 6.0]]), np.array([[10.0]])) == 15
    assert period(ready, np.array([[6.0, 40.0]]), np.array([[10.0]])) == 40


def test_without_its_late_rank_the_step_is_as_its_peers_are():
    ready = np.array([[[2.0], [4.0], [50.0]]])
    ends = np.array([[2.0, 4.0, 50.0]])
    assert period(ready, ends, np.array([[10.0]])) == 60
    assert period_without([2], ready, ends, np.array([[10.0]])) == 4 + 10


def test_without_one_of_two_late_ranks_the_other_is_still_late():
    ready = np.array([[[0.0], [0.0], [30.0], [30.0]]])
    transfer = np.array([[10.0]])
    assert period_without([2], ready, ready[..., 0], transfer) == 40
    assert period_without([2, 3], ready, ready[..., 0], transfer) == 10


def test_with_every_rank_at_the_mean_what_outlasts_compute_is_the_links():
    ready, ends = np.array([[[2.0], [4.0], [50.0]]]), np.array([[5.0, 7.0, 60.0]])
    typical = np.array([True, True, False])
    step, exposed = steps(ready, ends, np.array([[10.0]])).of_mean(typical)
    assert (step, exposed) == (3 + 10, 13 - 6)


def test_replaying_leaves_the_stamps_as_they_are():
    ready, ends = np.array([[[2.0], [50.0]]]), np.array([[2.0, 50.0]])
    period_without([1], ready, ends, np.array([[10.0]]))
    assert ready[0, 1, 0] == ends[0, 1] == 50


def test_a_rank_that_has_its_last_bucket_later_than_others_is_not_late_by_that():
    """In a ring the ranks end up to one chunk apart; only a rank's own work is replaced by its peers'."""
    start = np.array([[-20.0, 0.0]])
    ready, compute_end, transfer = np.array([[[40.0], [40.0]]]), np.array([[40.0, 40.0]]), np.array([[100.0]])
    assert period(ready, compute_end, transfer, start)[0] == 140
    assert period_without([1], ready, compute_end, transfer, start)[0] == 140
    late = ready + np.array([0.0, 30.0])[None, :, None]
    assert period(late, compute_end, transfer, start)[0] == 170
    assert period_without([1], late, compute_end, transfer, start)[0] == 140
