"""A real loop whose ranks have unequal numbers of tokens: what a token takes, beside what the loop itself noted."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from support.tables import collected

from scaling.records.paths import RunFolder
from scaling.worker.probe.loop_file import round_of

pytestmark = pytest.mark.measures

SCRIPT = Path(__file__).with_name("uneven_ranks.py")


def really_us(ranks, rounds, name="told"):
    """What a token, and a squared one, took in the steps with phase stamps, by what the loop noted.

    Each round less the means of its steps and of its ranks, as the analysis does it.
    """
    apart = []
    for number in rounds:
        steps = [
            step
            for block in round_of(number)
            if block.stamped
            for step in range(block.first, block.first + block.steps)
        ]
        tokens, took = (
            np.array([[rank[name][key][step] for step in steps] for rank in ranks], dtype=float)
            for key in ("tokens", "took_s")
        )
        terms = (tokens, tokens**2, took) if name == "squared" else (tokens, took)
        apart.append(
            [
                (each - each.mean(axis=0) - each.mean(axis=1, keepdims=True) + each.mean()).ravel()
                for each in terms
            ]
        )
    *work, took = np.concatenate(apart, axis=1)
    return 1e6 * np.linalg.lstsq(np.array(work).T, took, rcond=None)[0]


def test_a_token_takes_what_the_loop_itself_noted(ranks, found):
    """To 3 %, or on a busy machine to the number's own interval."""
    (point,) = found("told").points
    per_token, (really,) = point.tokens.per_token_us, really_us(ranks, range(16))
    assert per_token.surely_above(really / 2)
    assert per_token.value == pytest.approx(really, abs=max(0.03 * really, per_token.half_width))
    assert point.tokens.rank == 1
    assert point.tokens.rank_extra.value == pytest.approx(200, rel=0.5)
    assert point.straggler is None


def test_a_token_and_a_squared_one_take_what_the_loop_noted(ranks, found):
    (point,) = found("squared").points
    taken = point.tokens.per_token_us.value, point.tokens.per_square_us.value
    really = really_us(ranks, range(16), "squared")
    assert taken == pytest.approx(tuple(really), rel=0.05)
    (straight,) = found("told").points
    assert straight.tokens.per_square_us is None


def test_imbalance_is_its_cause(found):
    (cause,) = [verdict for verdict in found("told").verdicts if verdict.cause == "imbalance"]
    assert cause.share.surely_above(0.03)
    assert "us a token" in cause.evidence[0]


def test_untold_tokens_leave_all_as_it_was(found):
    analysis = found("untold")
    (point,) = analysis.points
    assert (point.tokens, point.loss.imbalance, point.tokens_per_s) == (None, None, None)
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
