"""What is written of a row."""

from __future__ import annotations

import pytest

from scaling.records.format import CollectiveRow, shortened

ROW = (3, 0, 2, 2**20, 10, 20, 30)


@pytest.mark.parametrize(
    ("more", "written"),
    [((), 7), ((0, 0, -1), 7), ((15,), 8), ((15, 0, -1), 8), ((15, 1), 9), ((0, 1), 9), ((0, 0, 0), 10)],
)
def test_a_collectives_row_leaves_out_defaults_at_its_end_alone(more, written):
    row = CollectiveRow(*ROW, *more)
    assert shortened(row) == row[:written]
    assert CollectiveRow(*shortened(row)) == row
