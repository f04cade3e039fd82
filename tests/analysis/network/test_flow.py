"""Collectives one after the other and at once, against a simulation in small steps."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.analysis.network.channel import Channel, Flow


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
    flow.launch(
        1, np.array([[4.0]]), np.array([[5.0]])
    )  # a rank that went on a little before its part was over
    assert flow.end(1) == 15
