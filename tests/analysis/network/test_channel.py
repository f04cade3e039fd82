"""The work-conserving link, against a link that is served instant by instant."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.network.channel import last_done, period, period_of_mean, period_without

buckets = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=6)


def served(released, transfer, choose):
    """Instant by instant: one unit of any bucket that is released; released in order of reduction."""
    released = np.maximum.accumulate(released).tolist()
    left, now = list(transfer), 0
    while any(left):
        waiting = [k for k, rest in enumerate(left) if rest and released[k] <= now]
        if waiting:
            left[choose(waiting)] -= 1
        now += 1
    return max(now, *released) if any(transfer) else max(released)


@given(buckets, st.integers(0, 2**16))
def test_the_last_bucket_is_done_when_a_link_that_never_idles_is_through(jobs, seed):
    released, transfer = ([x] for x in zip(*jobs, strict=True))
    found = last_done(np.array(released, dtype=float), np.array(transfer, dtype=float))
    assert found[0] == served(released[0], transfer[0], random.Random(seed).choice)


@given(buckets)
def test_channels_and_their_sharing_make_no_difference(cluster, jobs):
    released, transfer = zip(*jobs, strict=True)
    launch = np.maximum.accumulate(released).astype(float)
    found = last_done(launch[None], np.array([transfer], dtype=float))[0]
    for channels in (1, 2, 3):
        assert found == pytest.approx(max(cluster.transfers(launch.tolist(), list(transfer), channels)))


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
    step, exposed = period_of_mean(typical, ready, ends, np.array([[10.0]]))
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
