"""A rank's step alone, and what ranks cost each other, from a run's arms."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from support.results import spec

from scaling.analysis.results import ArmTimes, Bucket, Comm, Loss, Measured, Point
from scaling.records.frames import SCHEMAS
from scaling_simulator.simulate import arms


def at(world_size, bare_one, plain, neighbours):
    return Point(
        world_size=world_size,
        hosts=1,
        status="done",
        arms_ms=ArmTimes(bare_one=Measured(bare_one), plain=Measured(plain)),
        loss=Loss(neighbours=neighbours),
    )


POINTS = [at(1, 98.0, 100.0, None), at(2, 102.0, 204.0, Measured(0.02, 0.01, 0.03))]


def test_the_step_alone_is_that_of_all_world_sizes():
    assert arms.alone_ns(POINTS) == pytest.approx(100e6)
    assert arms.alone_ns([]) is None


def test_neighbours_are_the_waterfalls_over_the_step_alone():
    found = arms.neighbours(POINTS)
    assert (found.value, found.low, found.high) == pytest.approx((0.04, 0.02, 0.06))


def test_one_rank_has_no_neighbours():
    assert arms.neighbours(POINTS[:1]) is None


HERE = spec().topology
WITHOUT_STEPS = SimpleNamespace(steps=pl.DataFrame(schema=SCHEMAS["steps"]))


def test_what_ranks_of_a_cpu_cost_each_other_is_not_taken_for_an_accelerator():
    there = replace(HERE, name="hgx_h100", device="cuda", backend="nccl", ranks_per_host=8)
    found = arms.between_ranks(POINTS, None, HERE, there, elsewhere=True)
    assert (found.slowdown, found.spread, found.neighbours) == (None, None, None)


def test_neighbours_are_those_of_as_many_ranks_on_a_host():
    more = replace(HERE, ranks_per_host=4)
    assert arms.between_ranks(POINTS, WITHOUT_STEPS, HERE, more, elsewhere=False).neighbours is None
    same = arms.between_ranks(POINTS, WITHOUT_STEPS, HERE, HERE, elsewhere=False)
    assert same.neighbours.value == pytest.approx(0.04)


def overlapping():
    """40 ms of transfer, half of it hidden, cost 5 of 200 ms."""
    bucket = Bucket(bytes=8, ready_ms=None, transfer_ms=Measured(40.0), skew_ms=None)
    comm = Comm(
        bytes_per_step=8,
        buckets=(bucket,),
        busbw_gbit_s=None,
        curve_share=None,
        nominal_share=None,
        hidden_share=Measured(0.5),
    )
    loss = Loss(overlap=Measured(0.025, 0.0, 0.05))
    return [replace(at(2, 100.0, 200.0, None), loss=loss, comm=comm)]


def test_a_slowdown_is_what_hidden_transfers_cost_over_what_is_left_of_them():
    """15 ms of kernels took 20; at the interval's end 10."""
    found = arms.slowdown(overlapping())
    assert (found.value, found.low, found.high) == pytest.approx((5 / 15, 0, 1))


def test_over_gloo_a_faster_link_slows_kernels_more_in_less_time():
    fast = replace(HERE, link=replace(HERE.link, rate_bit_s=4 * HERE.link.rate_bit_s))
    found = arms.between_ranks(overlapping(), WITHOUT_STEPS, HERE, fast, elsewhere=False)
    assert found.slowdown.value == pytest.approx(4 * 5 / 15)
    same = arms.between_ranks(overlapping(), WITHOUT_STEPS, HERE, HERE, elsewhere=False)
    assert same.slowdown.value == pytest.approx(5 / 15)
