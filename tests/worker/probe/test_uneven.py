"""A real loop whose ranks have unequal numbers of tokens: each step is recorded with its own."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from support.tables import collected

from scaling.records.paths import RunFolder
from scaling.worker.probe.loop_file import round_of

pytestmark = pytest.mark.slow  # trainings of two ranks

SCRIPT = Path(__file__).with_name("uneven_ranks.py")
RANKS = 2


def test_untold_tokens_leave_all_as_it_was(found):
    analysis = found("untold")
    (point,) = analysis.points
    assert (point.tokens, point.tokens_per_s) == (None, None)
    assert point.loss is None or point.loss.imbalance is None  # None: on a busy machine no term may be known
    assert "imbalance" not in [verdict.cause for verdict in analysis.verdicts]


def test_what_is_told_outside_of_a_step_is_left_out_and_said_once(ranks):
    assert [len(rank["told"]["said"]) for rank in ranks] == [0, 0]
    (said,) = ranks[0]["untold"]["said"]
    assert "tokens() is called inside step()" in said


@pytest.mark.parametrize("name", ["told", "untold"])
def test_the_records_hold_the_tokens_of_each_step_with_phases(ranks, found, kept, name):
    found(name)
    run = RunFolder(kept / name)
    steps = collected(run).steps
    phases = steps.filter(pl.col("forward_ns").is_not_null())
    assert steps.filter(pl.col("forward_ns").is_null())["tokens"].is_null().all()
    if name == "untold":
        assert phases["tokens"].is_null().all()
        return
    first = {block.id: block.first for number in range(16) for block in round_of(number)}
    for row in phases.iter_rows(named=True):
        assert row["tokens"] == ranks[row["rank"]]["told"]["tokens"][first[row["block"]] + row["step"]]
