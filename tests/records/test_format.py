"""What is written of a row."""

from __future__ import annotations

import pytest

from scaling.records.format import CollectiveRow, PlainRow, StepRow, shortened, shortest

ROW = (3, 0, 2, 2**20, 10, 20, 30)


@pytest.mark.parametrize(
    ("more", "written"),
    [((), 7), ((0, 0, -1), 7), ((15,), 8), ((15, 0, -1), 8), ((15, 1), 9), ((0, 1), 9), ((0, 0, 0), 10)],
)
def test_a_collectives_row_leaves_out_defaults_at_its_end_alone(more, written):
    row = CollectiveRow(*ROW, *more)
    assert shortened(row) == row[:written]
    assert CollectiveRow(*shortened(row)) == row


STEP = (30, 40, 1, 2, 3, 1, 35, 36)
BUFFERS, WAITS = (0, 1, 51, 52), (3, 4)


@pytest.mark.parametrize(
    ("row", "written"),
    [
        (PlainRow(30, 40), 2),
        (StepRow(*STEP), 9),
        (StepRow(*STEP, *BUFFERS), 12),
        (StepRow(*STEP, *BUFFERS, *WAITS), 14),
        (StepRow(*STEP, tokens=0), 15),
        (StepRow(*STEP, *BUFFERS, *WAITS, 512), 15),
    ],
)
def test_a_steps_row_leaves_out_what_is_not_known_of_it(row, written):
    found = shortest(row)
    assert len(found) == written
    assert type(row)(*found) == row
