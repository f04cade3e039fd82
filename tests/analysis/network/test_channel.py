"""What back ends make of released collectives, against a wire that is served instant by instant.

Collectives one after the other and at once, against a simulation in small steps.
"""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.analysis.network.channel import ONE, Channel, Flow

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
    found = ONE.last_done(np.array(released, dtype=float), np.array(transfer, dtype=float))
    assert found[0] == served(released[0], transfer[0], random.Random(seed).choice)


@given(buckets)
def test_channels_and_their_sharing_make_no_difference(cluster, jobs):
    released, transfer = zip(*jobs, strict=True)
    launch = np.maximum.accumulate(released).astype(float)
    found = ONE.last_done(launch[None], np.array([transfer], dtype=float))[0]
    for channels in (1, 2, 3):
        assert found == pytest.approx(max(cluster.transfers(launch.tolist(), list(transfer), channels)))


FIFO = Channel.of("nccl", communicator=(5, 5, 5))


def one(values):
    return np.array([values], dtype=float)


def test_a_fifo_back_end_begins_a_collective_when_the_one_before_it_is_done():
    begun = FIFO.begun(one([0, 2, 30]), one([10, 24, 36]))
    assert begun.tolist() == [[0, 10, 30]]
    shares = FIFO.shares(begun, one([10, 24, 36]))
    assert (shares.transfer.tolist(), shares.shared.tolist()) == ([[10, 14, 6]], [[0, 0, 0]])
    assert shares.busy.tolist() == [30]


def test_messages_of_two_ranks_begin_in_turn_though_the_back_end_runs_others_at_once():
    """An all-reduce is released at 2, between two messages; the other communicator's message waits for nobody."""
    pair = Channel.of("gloo", (5, 5, 5, 6), in_turn=(True, False, True, True))
    begun = pair.begun(one([0, 2, 4, 6]), one([10, 20, 30, 40]))
    assert begun.tolist() == [[0, 2, 10, 6]]
    assert pair.among(slice(1, 3)).begun(one([2, 4]), one([20, 30])).tolist() == [[2, 4]]


def test_gloo_runs_them_at_once_and_divides_the_link():
    gloo = Channel.of("gloo")
    begun = gloo.begun(one([0, 2]), one([10, 24]))
    shares = gloo.shares(begun, one([10, 24]))
    assert begun.tolist() == [[0, 2]]
    assert (shares.transfer.tolist(), shares.shared.tolist()) == ([[2 + 4, 4 + 14]], [[8, 8]])


def test_two_communicators_share_a_wire_and_both_say_so():
    both = Channel.of("nccl", communicator=(1, 2, 1))
    finished = one([15, 20, 25])
    begun = both.begun(one([0, 5, 1]), finished)
    assert begun.tolist() == [[0, 5, 15]]
    shares = both.shares(begun, finished)
    assert shares.transfer.tolist() == [[5 + 5, 5 + 2.5, 2.5 + 5]]
    assert shares.shared.tolist() == [[10, 15, 5]]
    assert shares.busy.tolist() == [25]


def test_over_wires_of_their_own_they_do_not():
    apart = Channel.of("nccl", communicator=(1, 2), wire_of=lambda key: key)
    shares = apart.shares(one([0, 5]), one([15, 20]))
    assert (shares.transfer.tolist(), shares.shared.tolist()) == ([[15, 15]], [[0, 0]])
    assert apart.last_done(one([0, 5]), one([15, 15])).tolist() == [20]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=6))
def test_what_is_merged_is_what_each_takes_alone_and_replaying_it_ends_when_it_ended(cluster, jobs):
    released, work, communicator = zip(*jobs, strict=True)
    launch = np.maximum.accumulate(released).astype(float)
    done = one(cluster.transfers(launch.tolist(), list(work), 1, communicator))
    channel = Channel.of("nccl", communicator)
    shares = channel.shares(channel.begun(launch[None], done), done)
    assert shares.transfer == pytest.approx(one(work))
    assert channel.last_done(launch[None], shares.transfer)[0] == pytest.approx(done.max())


def stepped(channel, released, transfer, tick=0.01):
    """When each is done, by going on in small steps."""
    left, done, now = list(transfer), [None] * len(transfer), 0.0
    while None in done:
        moving = []
        for k, at in enumerate(released):
            before = [j for j in range(k) if channel.communicator[j] == channel.communicator[k]]
            if not channel.fifo:
                before = [j for j in before if channel.in_turn[j] and channel.in_turn[k]]
            waits = any(done[j] is None for j in before)
            if done[k] is None and at <= now and not waits:
                moving.append(k)
        for k in moving:
            left[k] -= tick / sum(channel.wire[j] == channel.wire[k] for j in moving)
        now += tick
        for k in moving:
            if left[k] <= 1e-9:
                done[k] = now
    return done


@pytest.mark.parametrize("in_turn", ["all", "some", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_each_is_done_when_small_steps_say_so(in_turn, seed):
    rng = np.random.default_rng(seed)
    count = 7
    channel = Channel(
        fifo=in_turn == "all",
        communicator=tuple(rng.integers(0, 3, count)),
        wire=tuple(rng.integers(0, 2, count)),
        in_turn=tuple(rng.integers(0, 2, count) > 0) if in_turn == "some" else (False,) * count,
    )
    # Those of a communicator are released in the order in which they are launched.
    released = np.sort(rng.uniform(0, 20, (1, 2, count)), axis=-1)
    transfer = rng.uniform(1, 6, (1, 2, count))
    flow = Flow(channel, (1, 2), count)
    for k in range(count):
        flow.launch(k, released[..., k], transfer[..., k])
    found = np.stack([flow.end(k) for k in range(count)], axis=-1)
    for rank in range(2):
        expected = stepped(channel, released[0, rank], transfer[0, rank])
        assert found[0, rank] == pytest.approx(expected, abs=0.2)
    assert (flow.begun >= released).all()
    assert (flow.done - flow.begun >= transfer - 1e-6).all()


@pytest.mark.parametrize("wire", [(), (1, 2, 1, 2)])
def test_one_communicator_on_each_wire_is_a_line(wire):
    rng = np.random.default_rng(0)
    channel = Channel(fifo=True, communicator=wire or (3,) * 4, wire=wire or (0,) * 4)
    released, transfer = np.sort(rng.uniform(0, 9, (1, 2, 4)), axis=-1), rng.uniform(1, 6, (1, 2, 4))
    flow = Flow(channel, (1, 2), 4)
    for k in range(4):
        flow.launch(k, released[..., k], transfer[..., k])
    found = np.stack([flow.end(k) for k in range(4)], axis=-1)
    for rank in range(2):
        expected = stepped(channel, released[0, rank], transfer[0, rank])
        assert found[0, rank] == pytest.approx(expected, abs=0.1)


def test_what_was_asked_for_early_is_held_up_by_nothing_later():
    flow = Flow(Channel(fifo=True, communicator=(1, 2)), (1, 1), 2)
    flow.launch(0, np.array([[0.0]]), np.array([[10.0]]))
    assert flow.end(0) == 10
    # a rank that went on a little before its part was over
    flow.launch(1, np.array([[4.0]]), np.array([[5.0]]))
    assert flow.end(1) == 15


@pytest.mark.parametrize("lacks", ["released", "transfer"])
def test_a_collective_without_a_time_is_refused_and_not_waited_for(lacks):
    times = {"released": np.array([[0.0]]), "transfer": np.array([[10.0]]), lacks: np.array([[np.nan]])}
    with pytest.raises(ValueError, match="would never end"):
        Flow(Channel(fifo=True, communicator=(1, 2)), (1, 1), 2).launch(0, **times)
