"""What a run gives for a simulation: kernels that add up to its step, slowdown, and spread of its ranks."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from scaling.analysis.simulate import measured
from scaling.records.checkup import SCHEMA, Kernel, KernelTable
from scaling.records.rank import SCHEMAS
from scaling.spec.simulation import Chip

CHIP = Chip(name="here", flop_s=1e9, flop_s_fp32=1e9, memory_bytes_s=1e9, kernel_us=0.0)


def table(step_ns, *kernels):
    return KernelTable(schema=SCHEMA, batch=8, precision="fp32", step_ns=step_ns, kernels=kernels)


def kernel(key, time_ns, calls=1.0, flops=0, size=0):
    return Kernel(key=key, operator=key.split("|")[0], calls=calls, time_ns=time_ns, flops=flops, bytes=size)


def test_on_a_cpu_operators_share_what_the_step_takes_beyond_them():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2), kernel("aten::add|b", 100_000))
    times, said = measured._times(given, CHIP, on_cpu=True)
    assert 2 * times.us["aten::mm|a"] + times.us["aten::add|b"] == pytest.approx(1000)
    assert "90.0%" in said[0]


def test_on_a_device_the_rest_is_the_hosts():
    given = table(1_000_000, kernel("aten::mm|a", 400_000, calls=2))
    times, _ = measured._times(given, CHIP, on_cpu=False)
    assert times.us["aten::mm|a"] == pytest.approx(400)


def test_operators_that_take_longer_than_their_step_are_scaled_to_it_and_that_is_said():
    given = table(1_000_000, kernel("aten::mm|a", 600_000, calls=2))
    times, said = measured._times(given, CHIP, on_cpu=True)
    assert 2 * times.us["aten::mm|a"] == pytest.approx(1000)
    assert "assumption" in said[0]


def test_other_shapes_take_their_operators_share_of_what_the_device_can_do():
    given = table(
        2_000_000, kernel("aten::mm|a", 2_000_000, flops=1_000_000)
    )  # 1 ms at 1 GFLOP/s: a factor of 2
    times, _ = measured._times(given, CHIP, on_cpu=False)
    assert times.factors == {"aten::mm": pytest.approx(2.0), "*": pytest.approx(2.0)}


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
    lasting, walk = measured._spread(tables(lasting=0.02, walk=200.0, ranks=ranks))
    assert lasting.value == pytest.approx(0.02, rel=0.15)
    assert walk.value == pytest.approx(200.0, rel=0.15)


def test_intervals_hold_the_truth():
    found = [
        measured._spread(tables(0.02, 200.0, ranks=4, blocks=8, steps=20, seed=seed)) for seed in range(40)
    ]
    assert sum(lasting.low < 0.02 < lasting.high for lasting, _ in found) >= 34
    assert sum(walk.low < 200.0 < walk.high for _, walk in found) >= 34


def test_each_is_near_none_where_only_the_other_is():
    lasting, walk = measured._spread(tables(lasting=0.05, ranks=8))
    assert walk.value < 0.2 * 0.05 * 1.15e8**0.5
    lasting, walk = measured._spread(tables(walk=300.0, ranks=8))
    assert lasting.value < 0.3 * 300.0 / 1.15e8**0.5


def test_one_rank_has_no_spread():
    assert measured._spread(tables(lasting=0.01, ranks=1)) is None
