"""Whom a rank waits for in a broadcast, by its stamps."""

from __future__ import annotations

import numpy as np
import pytest

from scaling.analysis.network.channel import Awaited, Channel
from scaling.analysis.network.replay import Mark, Program

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
        own=own,
        transfer=transfer,
        lag=np.zeros((1, 3, 2)),
        members=(everybody, everybody),
        channel=Channel(fifo=True),
        start=np.zeros((1, 3)),
        follows={0: Awaited.of(begin, begin + 10, fifo=True, clocks_ns=0.0)},
    )
    assert program.run().tolist() == [[180, 180, 180]]
    assert program.without([2]).period().tolist() == [130]
