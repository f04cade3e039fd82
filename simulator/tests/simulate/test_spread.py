"""The spread of ranks is split into what lasts a step and what does not."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from scaling.records.frames import SCHEMAS
from scaling_simulator.simulate.spread import spread_of


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
