"""Steps replayed from their ranks' own times.

Whom a rank waits for in a broadcast, by its stamps.

Ranks that wait for each other inside a step.
"""

import numpy as np
import pytest

from scaling.analysis.network.channel import Awaited, Channel
from scaling.analysis.network.replay import Barrier, Mark, Program, Replay


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
    step, exposed = steps(ready, ends, np.array([[10.0]])).at_mean_of(typical)
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


US = 1e3


def waited(begin, end, **how):
    begin, end = np.array([begin]) * US, np.array([end]) * US
    return (Awaited.of(begin, end, **how).waited(begin, end)[0] / US).tolist()


def test_on_a_device_nobody_waits_for_a_receiver_that_comes_while_the_data_move():
    """They take 500 us. The second rank comes 300 us after the first one, which is done by itself."""
    assert waited([0, 300], [500, 800], fifo=True, clocks_ns=20 * US) == [0, 0]
    assert waited([0, 300], [500, 800]) == [300, 0]  # as on the host, where clocks and stamps are coarser


def test_receivers_wait_for_the_root_and_not_for_each_other():
    assert waited([1000, 0, 3000], [1500, 1500, 3500], fifo=True, clocks_ns=20 * US) == [0, 1000, 0]


@pytest.mark.parametrize("off_us", [-90, 0, 90])
def test_an_error_of_the_clocks_does_not_hide_who_was_waited_for(off_us):
    """The root's clock is off by up to 90 us."""
    found = waited([1000 + off_us, 0], [1040 + off_us, 1040], fifo=True, clocks_ns=100 * US)
    assert found[1] == pytest.approx(1000, abs=90)


def test_what_is_known_of_the_clocks_bounds_it():
    assert Channel.of("nccl", clock_bound_ns=5_000).clocks_ns == 30_000
    assert Channel.of("nccl").clocks_ns == Channel.of("gloo", clock_bound_ns=5_000).clocks_ns == 200_000


MARKS = tuple(Mark(waits=waits, collective=k) for k in (0, 1) for waits in (False, True))


def test_a_replayed_broadcast_holds_up_those_alone_that_wait_for_it():
    """A receiver 50 late for a broadcast of 10, and an all-reduce of 20 behind 100 of everybody's own."""
    own = np.array([[[0, 0, 100, 100], [0, 0, 100, 100], [50, 50, 100, 100]]], dtype=float)
    transfer = np.broadcast_to(np.array([10.0, 20.0]), (1, 3, 2))
    begin = np.array([[0.0, 0.0, 50.0]])
    everybody = ((0, 1, 2),)
    program = Program(
        marks=MARKS,
        own_ns=own,
        transfer=transfer,
        lag=np.zeros((1, 3, 2)),
        members=(everybody, everybody),
        channel=Channel(fifo=True),
        start=np.zeros((1, 3)),
        follows={0: Awaited.of(begin, begin + 10, fifo=True, clocks_ns=0.0)},
    )
    assert program.run().tolist() == [[180, 180, 180]]
    assert program.without([2]).period().tolist() == [130]


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
    assert met.origin_after(START).tolist() == [[40e6, MS, 39e6]]


def test_without_its_lateness_the_others_go_on_when_they_come():
    met = barrier(begin=[1, 40, 2], end=[41, 41, 41]).with_mean([1], np.array([0, 2]))
    assert (met.origin_after(START) + met.at).tolist() == [[3e6, 3e6, 3e6]]


def test_a_rank_that_left_before_the_late_one_came_did_not_wait_for_it():
    """As a root of NCCL's broadcast may: it is done when its data are on the way."""
    met = barrier(begin=[1, 40, 2], end=[3, 41, 41])
    assert met.origin_after(START + np.array([[0, 60 * MS, 0]])).tolist() == [[2 * MS, 61 * MS, 99 * MS]]
