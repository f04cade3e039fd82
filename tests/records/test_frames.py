"""Rows by their place, in whatever order they come."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from scaling.records.frames import runs

PLACE = ["launch", "rank", "block", "step"]


def table(seed, *, shuffled, rows=400):
    """Rows of two launches, some of whose places occur several times and others not at all."""
    rng = np.random.default_rng(seed)
    numbers = {name: rng.integers(size, size=rows) for name, size in zip(PLACE, (2, 3, 4, 5), strict=True)}
    frame = pl.DataFrame({**numbers, "value": rng.integers(-9, 9, size=rows)})
    return frame if shuffled else frame.sort("launch", "block", "rank", "step")


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("place", [PLACE, PLACE[:3]])
def test_runs_reduce_as_a_group_by_does(place, shuffled):
    frame = table(1, shuffled=shuffled)
    each = runs(frame, place)
    values = each.frame["value"].to_numpy()
    found = each.table(rows=each.lengths, least=each.minimum(values), most=each.maximum(values))
    expected = frame.group_by(place).agg(
        rows=pl.len(), least=pl.col("value").min(), most=pl.col("value").max()
    )
    assert found.select(expected.columns).sort(place).rows() == expected.sort(place).rows()


def test_rows_in_order_stay_as_they_are():
    frame = table(2, shuffled=False)
    assert runs(frame, PLACE).frame is frame


def test_runs_inside_larger_ones_are_counted():
    each = runs(table(3, shuffled=True), PLACE)
    of_block = runs(each.frame, PLACE[:3])
    found = of_block.table(steps=each.inside(of_block))
    expected = each.frame.group_by(PLACE[:3]).agg(steps=pl.col("step").n_unique())
    key = PLACE[:3]
    assert found.select(expected.columns).sort(key).rows() == expected.sort(key).rows()


def test_no_rows_have_no_runs():
    empty = table(4, shuffled=False).head(0)
    each = runs(empty, PLACE)
    assert each.table(rows=each.lengths, most=each.maximum(empty["value"].to_numpy())).height == 0
    assert list(each.inside(runs(empty, PLACE[:3]))) == []
