"""A rank's step alone, and what ranks cost each other, from a run's arms.

The spread of ranks is split into what lasts a step and what does not.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from support.results import bucket, comm, spec

from scaling.analysis.results import ArmTimes, Loss, Measured, Point
from scaling.records.tables import SCHEMAS
from scaling_simulator.simulate import arms
from scaling_simulator.simulate.arms import spread_of


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
    hidden = comm(8, buckets=(bucket(8, transfer_ms=Measured(40.0)),), hidden_share=Measured(0.5))
    loss = Loss(overlap=Measured(0.025, 0.0, 0.05))
    return [replace(at(2, 100.0, 200.0, None), loss=loss, comm=hidden)]


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


def tables(lasting=0.0, walk=0.0, ranks=4, blocks=12, steps=40, seed=1):
    """Ranks differ by `lasting` for a step and by `walk` in each phase; all together by much more."""
    draw = np.random.default_rng(seed)
    rows = []
    for block in range(blocks):
        for step in range(steps):
            common = 1e8 * (1 + 0.3 * draw.random())
            for rank in range(ranks):
                slow = 1 + lasting * draw.normal()
                phases = [
                    int(share * common * slow + walk * (share * common) ** 0.5 * draw.normal())
                    for share in (1 / 3, 2 / 3)
                ]
                rows.append(
                    {
                        **{name: 0 if kind == pl.Int64 else None for name, kind in SCHEMAS["steps"].items()},
                        "launch": 0,
                        "round": block,
                        "block": block,
                        "step": step,
                        "rank": rank,
                        "arm": "ddp_solo",
                        "world_size": ranks,
                        "forward_ns": phases[0],
                        "backward_ns": phases[1],
                        "buffer_wait_ns": 0,
                        "earlier_wait_ns": 0,
                        "compute_end_ns": 0,
                        "sync_end_ns": 0,
                    }
                )

    class Tables:
        pass

    Tables.steps = pl.DataFrame(rows, schema=SCHEMAS["steps"])
    return Tables


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_what_lasts_a_step_is_split_from_what_does_not(ranks):
    lasting, walk = spread_of(tables(lasting=0.02, walk=200.0, ranks=ranks))
    assert lasting.value == pytest.approx(0.02, rel=0.15)
    assert walk.value == pytest.approx(200.0, rel=0.15)


def test_intervals_hold_the_truth():
    found = [spread_of(tables(0.02, 200.0, ranks=4, blocks=8, steps=20, seed=seed)) for seed in range(40)]
    assert sum(lasting.low < 0.02 < lasting.high for lasting, _ in found) >= 34
    assert sum(walk.low < 200.0 < walk.high for _, walk in found) >= 34


def test_each_is_near_none_where_only_the_other_is():
    lasting, walk = spread_of(tables(lasting=0.05, ranks=8))
    assert walk.value < 0.2 * 0.05 * 1.15e8**0.5
    lasting, walk = spread_of(tables(walk=300.0, ranks=8))
    assert lasting.value < 0.3 * 300.0 / 1.15e8**0.5


def test_one_rank_has_no_spread():
    assert spread_of(tables(lasting=0.01, ranks=1)) is None
