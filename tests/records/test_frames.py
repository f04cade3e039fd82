"""Rows by their place, in whatever order they come."""

import numpy as np
import polars as pl
import pytest

from scaling.records.tables import by_runs

PLACE = ["launch", "block", "rank", "step"]


def table(seed, *, shuffled, rows=400):
    """Rows of two launches, some of whose places occur several times and others not at all."""
    rng = np.random.default_rng(seed)
    numbers = {name: rng.integers(size, size=rows) for name, size in zip(PLACE, (2, 4, 3, 5), strict=True)}
    frame = pl.DataFrame({**numbers, "value": rng.integers(-9, 9, size=rows)})
    return frame if shuffled else frame.sort(PLACE)


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("place", [PLACE, PLACE[:3]])
def test_runs_reduce_as_a_group_by_does(place, shuffled):
    frame = table(1, shuffled=shuffled)
    values = {"rows": pl.len(), "least": pl.col("value").min(), "steps": pl.col("step").n_unique()}
    values = {name: value for name, value in values.items() if name not in place}
    expected = frame.group_by(place).agg(**values).sort(place)
    assert by_runs(frame, place, **values).rows() == expected.rows()


def test_no_rows_have_no_runs():
    assert by_runs(table(4, shuffled=False).head(0), PLACE, most=pl.col("value").max()).height == 0
