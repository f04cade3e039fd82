"""Telemetry joined to blocks by time, and the share that lower clocks cost."""

from __future__ import annotations

import polars as pl
import pytest

from scaling.analysis.clocks import ClockSample, block_clocks, share, warnings
from scaling.analysis.results import Measured

S = 10**9


def blocks():
    """bare_one, then plain, in each of four rounds, three seconds each."""
    rows = []
    for number in range(4):
        for index, arm in enumerate(("bare_one", "plain")):
            begin = (2 * number + index) * 3 * S
            rows.append((0, 0, number, 2, arm, begin, begin + 3 * S - 1))
    names = ["launch", "rank", "round", "world_size", "arm", "begin_ns", "end_ns"]
    return pl.DataFrame(rows, schema=names, orient="row")


def samples(alone=2000, together=1800, reasons=0):
    """One a second."""
    return tuple(
        ClockSample(
            time_ns=t * S,
            sm_mhz=alone if (t // 3) % 2 == 0 else together,
            reasons=reasons if (t // 3) % 2 else 0,
        )
        for t in range(24)
    )


def clocked(**options):
    return block_clocks(blocks(), {(0, 0): samples(**options)})


def test_a_block_has_the_mean_clock_of_its_own_samples():
    assert clocked()["sm_mhz"].to_list() == [2000, 1800] * 4


def test_lower_clocks_cost_their_part_of_the_compute():
    found = share(clocked(), 2, compute_ms=Measured(40.0), step_ms=Measured(50.0))
    assert found.value == pytest.approx(0.8 * 0.1)
    assert found.n == 4


def test_equal_clocks_cost_nothing_and_no_telemetry_is_unknown():
    found = share(clocked(together=2000), 2, compute_ms=Measured(40.0), step_ms=Measured(50.0))
    assert found.value == 0
    nothing = block_clocks(blocks(), {})
    assert nothing["sm_mhz"].null_count() == 8
    assert share(nothing, 2, compute_ms=Measured(40.0), step_ms=Measured(50.0)) is None


def test_blocks_that_were_throttled_are_counted_and_their_ranks_named():
    assert warnings(clocked(reasons=0x40)) == (
        "throttled: 4 of 8 blocks ran while their device slowed itself down (rank 0)",
    )
    assert warnings(clocked(reasons=0x4)) == ()


def test_a_block_shorter_than_the_period_takes_the_sample_next_to_it():
    short = blocks().with_columns(begin_ns=pl.col("begin_ns") + S // 3, end_ns=pl.col("begin_ns") + S // 2)
    assert block_clocks(short, {(0, 0): samples()})["sm_mhz"].null_count() == 0
