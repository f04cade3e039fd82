"""Steps of a sharded module replayed: launches and waits at many places, with times that are known."""

import dataclasses

import numpy as np
import pytest

from scaling.analysis.network.channel import Channel
from scaling.analysis.network.replay import Mark, Program

GATHER, REDUCE = 0, 1
FIFO = Channel(fifo=True)
MARKS = tuple(Mark(waits=waits, collective=k) for k in (GATHER, REDUCE) for waits in (False, True))


def program(own, transfer=(10.0, 20.0), *, ranks=2, members=None, channel=FIFO, marks=MARKS):
    """One step; `own`: per rank, its own time before each mark."""
    shape = (1, ranks, len(transfer))
    return Program(
        marks=marks,
        own_ns=np.array([own], dtype=float),
        transfer=np.broadcast_to(np.array(transfer, dtype=float), shape).copy(),
        lag=np.zeros(shape),
        members=members or tuple((tuple(range(ranks)),) for _ in transfer),
        channel=channel,
        start=np.zeros((1, ranks)),
    )


def test_alike_ranks_wait_for_the_data_alone():
    step = program([[1, 2, 30, 31]] * 2)
    # launched at 1, over at 11; then 30 of its own, launched at 41, over at 61
    assert step.period()[0] == 61
    _, exposed = step.at_mean_of(np.array([True, True]))
    assert exposed[0] == (11 - 2) + (61 - 42)


def test_what_is_over_before_it_is_waited_for_costs_nothing():
    assert program([[1, 15, 30, 55]] * 2).period()[0] == 15 + 55


def test_a_late_rank_costs_what_it_is_late_and_nothing_without_it():
    step = program([[1, 2, 30, 31], [26, 27, 30, 31]])
    assert step.period()[0] == 61 + 25
    assert step.without([1]).period()[0] == 61
    assert (step.computed()[:, 1] - step.computed()[:, 0]).tolist() == [25]


def test_a_rank_that_is_late_where_others_have_waited_anyway_costs_less():
    """It computes 5 longer behind the gather, which is over at 11 for all."""
    assert program([[1, 2, 30, 31], [1, 2, 35, 36]]).period()[0] == 66
    assert program([[1, 2, 30, 60], [1, 2, 35, 60]]).period()[0] == 11 + 60


BOTH = (Mark(waits=False, collective=0), Mark(waits=False, collective=1), Mark(waits=True, collective=1))


def test_collectives_of_one_communicator_run_one_after_the_other():
    assert program([[1, 2, 3]] * 2, marks=BOTH).period()[0] == 1 + 10 + 20


@pytest.mark.parametrize("channel", [FIFO, Channel(communicator=(1, 1), in_turn=(True, True))])
def test_what_goes_before_in_the_same_line_is_waited_for_as_transfer(channel):
    """The rank waits from 3 to 31: until 11 the first one moves data, then the second."""
    step = program([[1, 2, 3]] * 2, marks=BOTH, channel=channel)
    assert step.period()[0] == 31
    assert step.at_mean_of(np.array([True, True]))[1] == pytest.approx(28)
    apart = program([[1, 15, 16]] * 2, marks=BOTH, channel=channel)
    assert apart.at_mean_of(np.array([True, True]))[1] == pytest.approx(35 - 16)


def test_collectives_of_two_communicators_share_a_wire():
    """Launched at 1 and 2: alone until 2, then with half of the wire each until the first is over, at 20."""
    shared = Channel(fifo=True, communicator=(1, 2))
    assert program([[1, 2, 3]] * 2, marks=BOTH, channel=shared).period()[0] == 31
    first = (*BOTH[:2], Mark(waits=True, collective=0))
    assert program([[1, 2, 3]] * 2, marks=first, channel=shared).period()[0] == 20
    own_wires = Channel(fifo=True, communicator=(1, 2), wire=(1, 2))
    assert program([[1, 2, 3]] * 2, marks=BOTH, channel=own_wires).period()[0] == 2 + 20


def test_a_back_end_without_order_shares_its_wire_among_all():
    gloo = (*BOTH[:2], Mark(waits=True, collective=0))
    assert program([[1, 2, 3]] * 2, marks=gloo, channel=Channel()).period()[0] == 20


def test_a_stream_of_its_own_reduces_over_copies_while_ranks_compute():
    """Pairs scatter twice, each time with an all-reduce behind it; the ranks wait once, for the second all-reduce.

    Rank 3 is 50 late, so its pair scatters until 61 and the all-reduce before the second one is over at 81.
    """
    pairs, copies = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    marks = (*(Mark(waits=False, collective=k) for k in range(4)), Mark(waits=True, collective=3))
    own = [[1, 0, 2, 0, 30]] * 3 + [[51, 0, 52, 0, 80]]
    channel = Channel(fifo=True, communicator=(1, 2, 1, 2), wire=(1, 2, 1, 2))
    step = program(own, (10.0, 20.0) * 2, ranks=4, members=(pairs, copies) * 2, channel=channel, marks=marks)
    step = dataclasses.replace(step, behind={1: 0, 3: 2})
    assert step.period()[0] == 51 + 10 + 20 + 20
    assert step.without([3]).period()[0] == 51


def test_a_late_rank_holds_up_its_own_group_first():
    """Ranks 0 and 1 gather among themselves, 2 and 3 too; then all reduce together."""
    halves, everybody = ((0, 1), (2, 3)), ((0, 1, 2, 3),)
    own = [[1, 2, 30, 31]] * 3 + [[41, 42, 30, 31]]
    step = program(own, ranks=4, members=(halves, everybody))
    assert step.run()[0].tolist() == [101, 101, 101, 101]
    only = program([row[:2] for row in own], ranks=4, members=(halves, everybody), marks=MARKS[:2])
    assert only.run()[0].tolist() == [11, 11, 51, 51]


def test_free_communication_leaves_each_rank_its_own_time():
    assert program([[1, 2, 30, 31]] * 2).without_transfer().period()[0] == 2 + 31


def test_an_earlier_input_moves_the_first_launch_and_no_later_one():
    step = program([[11, 12, 30, 31]] * 2)
    assert step.sooner_by(np.array([[10.0, 10.0]])).period()[0] == step.period()[0] - 10


@pytest.mark.parametrize(("lag", "linked"), [(-4.0, 24.0), (3.0, 28.0)])
def test_a_rank_that_goes_on_before_the_last_chunk_waited_less_and_one_woken_late_not_for_the_link(
    lag, linked
):
    step = program([[1, 2, 30, 31]] * 2)
    step.lag[:, :, GATHER] = lag
    assert step.at_mean_of(np.array([True, True]))[1][0] == linked


def test_ranks_of_a_ring_that_go_on_one_after_the_other_wait_for_the_link_alone():
    """The first one has its part 4 early, and waits for the others at the next collective."""
    step = program([[1, 2, 30, 31]] * 2)
    step.lag[:, 0, GATHER] = -4
    assert [each[0] for each in step.at_mean_of(np.array([True, True]))] == [61, 28]


def test_alike_ranks_wait_for_a_group_whose_data_came_later():
    """Of two pairs one reduces in 5, the other in 15; then each rank of one gathers with one of the other in 10."""
    pairs, across = ((0, 2), (1, 3)), ((0, 1), (2, 3))
    step = program([[0, 0, 3, 3]] * 4, ranks=4, members=(pairs, across))
    step.transfer[:, [0, 2], 0], step.transfer[:, [1, 3], 0], step.transfer[:, :, 1] = 5, 15, 10
    assert [each[0] for each in step.at_mean_of(np.ones(4, bool))] == [15 + 3 + 10, 15 + 10]


@pytest.mark.parametrize("lag", [-4.0, 3.0])
def test_what_was_measured_beyond_the_model_stays(lag):
    step = program([[1, 2, 30, 31]] * 2)
    step.lag[:, :, GATHER] = lag
    assert step.period()[0] == 61 + lag
