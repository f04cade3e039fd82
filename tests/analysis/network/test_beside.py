"""Groups that share a host's link: what each takes alone, what all take together, and steps in which they meet.

Integrals over how many intervals are open.
"""

import dataclasses

import numpy as np
import pytest

from scaling.analysis.network.channel import Channel
from scaling.analysis.network.replay import Mark, Program
from scaling.analysis.network.shared_link import APART, SharedLink, covered, equal_parts

HOSTS = SharedLink(hosts=(0, 0, 1, 1))
PAIRS = ((0, 2), (1, 3))
"""Of two groups with a rank on each host."""
WITHIN, ALL = ((0, 1), (2, 3)), ((0, 1, 2, 3),)


def of_groups(*times, members=PAIRS):
    """1 x R x 1: a time for each group."""
    found = np.zeros((1, 4, 1))
    for group, time in zip(members, times, strict=True):
        found[:, list(group)] = time
    return found


def shares(begun, finished, members=PAIRS, beside=HOSTS):
    begun, finished = of_groups(*begun, members=members), of_groups(*finished, members=members)
    alone, together = beside.shares(begun, finished, [members], finished - begun)
    return alone[0, :, 0].tolist(), together[0, :, 0].tolist()


@pytest.mark.parametrize(
    ("begun", "finished", "alone", "together"),
    [
        ((0, 0), (20, 20), (10, 10), 20),  # at once, with half of the link each
        ((0, 4), (16, 20), (10, 10), 20),  # one begins later; the other has the link alone until then
        ((0, 0), (10, 20), (5, 15), 20),  # the link treats them unequally
        ((0, 50), (10, 60), (10, 10), 20),  # never at once
    ],
)
def test_parts_add_up_to_the_busy_link(begun, finished, alone, together):
    first, second = alone
    assert shares(begun, finished) == ([first, second, first, second], [together] * 4)
    assert first + second == together
    assert all(part <= b - a for part, a, b in zip(alone, begun, finished, strict=True))


@pytest.mark.parametrize(
    ("members", "beside"), [(WITHIN, HOSTS), (PAIRS, APART), (PAIRS, SharedLink(hosts=(0,) * 4))]
)
def test_groups_that_share_no_link_have_their_own_times(members, beside):
    alone, together = shares((0, 0), (20, 30), members=members, beside=beside)
    assert alone == together
    assert sorted(set(alone)) == [20, 30]


def test_one_group_of_all_ranks_is_beside_nobody():
    assert HOSTS.shared(ALL) == {}
    assert HOSTS.many(ALL) == 1
    assert HOSTS.many(PAIRS) == 2


def test_what_moves_over_the_link_is_counted_once_whichever_collective_it_is():
    """The second collective of one group is on the link with the first one of the other."""
    begun = np.concatenate([of_groups(0, 0), of_groups(20, 10)], axis=2)
    finished = np.concatenate([of_groups(20, 10), of_groups(30, 20)], axis=2)
    _, together = HOSTS.shares(begun, finished, [PAIRS, PAIRS], finished - begun)
    assert together[0].sum(axis=1).tolist() == [30.0] * 4


def test_a_rank_waits_for_data_while_others_send_over_its_link():
    begun, finished = of_groups(0, 5), of_groups(10, 20)
    low, high = of_groups(0, 0), of_groups(25, 25)
    assert HOSTS.moving(begun, finished, [PAIRS], low, high)[0, :, 0].tolist() == [20] * 4
    assert APART.moving(begun, finished, [PAIRS], low, high)[0, :, 0].tolist() == [10, 15, 10, 15]


REDUCE, GATHER = 0, 1
MARKS = tuple(Mark(waits=waits, collective=k) for k in (REDUCE, GATHER) for waits in (False, True))


def program(own, transfer=(10.0, 2.0), beside=HOSTS):
    """Pairs between hosts reduce, then the ranks of a host gather. `own`: per rank, before the reduction."""
    shape = (1, 4, 2)
    return Program(
        marks=MARKS,
        own_ns=np.array([[[at, at, 3, 3] for at in own]], dtype=float),
        transfer=np.broadcast_to(np.array(transfer, dtype=float), shape).copy(),
        lag=np.zeros(shape),
        members=(PAIRS, WITHIN),
        channel=Channel(communicator=(5, 6), wire=(1, 0)),
        start=np.zeros((1, 4)),
        beside=beside,
    )


@pytest.mark.parametrize(("late", "over"), [(0, 20), (4, 20), (50, 60)])
def test_steps_of_groups_that_share_a_link(late, over):
    assert program([0, late] * 2).period().tolist() == [over + 3 + 2]
    assert program([0, late] * 2, beside=APART).period().tolist() == [late + 10 + 3 + 2]


def test_a_late_group_costs_what_the_others_do_not_send_meanwhile():
    """Rank 1 is 50 late, so its pair reduces when the other one is done: the link is free by then."""
    step = program([0, 50, 0, 0])
    assert step.period() - step.without([1]).period() == 60 - 20
    typical, linked = step.at_mean_of(np.array([True, False, True, True]))
    assert (typical[0], linked[0]) == pytest.approx((20 + 3 + 2, 20 + 2), abs=0.01)


def test_alike_groups_wait_for_all_that_the_link_carries_however_it_was_divided():
    step = program([0] * 4)
    unequal = step.transfer.copy()
    unequal[:, [0, 2], REDUCE], unequal[:, [1, 3], REDUCE] = 5, 15
    found = dataclasses.replace(step, transfer=unequal).at_mean_of(np.ones(4, bool))
    assert [each[0] for each in found] == pytest.approx([25, 22], abs=0.01)


def test_closure_takes_what_all_groups_take_together():
    assert program([0] * 4).at_pace(np.ones(4), np.array([20.0, 2.0])) == 25


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
