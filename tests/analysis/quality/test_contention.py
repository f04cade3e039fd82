"""Which blocks of bare compute had to wait for a core, and which steps ran beside them."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.decompose.history import histories
from scaling.analysis.quality.contention import CONTENDED, Stolen, beside, count, doubts, warnings

MS = 1_000_000


@pytest.fixture(scope="module")
def run(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2), rounds=4))


def delayed(run, where, share):
    """The run's records had the blocks `where` waited for a core for so much of their time."""
    wall = pl.col("end_ns") - pl.col("begin_ns")
    waited = pl.when(where).then((wall * share).cast(pl.Int64)).otherwise(pl.col("delayed_ns"))
    return replace(run.tables, blocks=run.tables.blocks.with_columns(delayed_ns=waited))


def block(name, rank, begin_ms, end_ms, delayed_ms, *, arm="bare_all", number=0):
    """A row of the table of blocks, as far as this needs one."""
    row = {"launch": 0, "round": number, "block": name, "rank": rank, "arm": arm}
    return row | {"begin_ns": begin_ms * MS, "end_ns": end_ms * MS, "delayed_ns": delayed_ms * MS}


def steps(*places):
    """Steps at (round, ms)."""
    return pl.DataFrame([{"launch": 0, "round": r, "begin_ns": ms * MS} for r, ms in places])


def test_a_block_of_bare_compute_that_waited_is_contended(run):
    arms = pl.col("arm").is_in(["bare_one", "bare_all"])
    bare = run.tables.blocks.filter(arms).height
    assert count(run.tables.blocks) == (0, bare)
    first = arms & (pl.col("round") == 0)
    tables = delayed(run, first, 1.2 * CONTENDED)
    assert count(tables.blocks) == (run.tables.blocks.filter(first).height, bare)
    assert count(delayed(run, first, 0.8 * CONTENDED).blocks) == (0, bare)


def test_where_gradients_travel_a_wait_proves_nothing(run):
    tables = delayed(run, pl.col("arm").is_in(["plain", "probe", "ddp_solo"]), 0.5)
    assert count(tables.blocks)[0] == 0
    assert not any(any(history.contended) for history in histories(tables, run.plan))


def test_steps_of_a_contended_round_are_marked_and_no_others(run):
    tables = delayed(run, pl.col("arm").is_in(["bare_one", "bare_all"]) & (pl.col("round") == 2), 0.5)
    for history, trial in zip(histories(tables, run.plan), run.plan.trials, strict=True):
        rows = tables.steps.filter(
            (pl.col("world_size") == trial.world_size)
            & (pl.col("rank") == 0)
            & ((pl.col("arm") == "plain") | ((pl.col("arm") == "probe") & ~pl.col("detailed")))
        ).sort("begin_ns")
        assert history.contended == tuple(number == 2 for number in rows["round"])


def test_the_nearest_block_of_the_round_decides():
    blocks = pl.DataFrame([block(1, 0, 0, 100, 50), block(2, 0, 300, 400, 0), block(3, 0, 0, 9, 9, number=1)])
    assert beside(steps((0, 110), (0, 290), (0, 410)), blocks, 1) == (True, False, False)


def test_any_rank_of_the_world_size_will_do_and_no_other():
    blocks = pl.DataFrame([block(1, 0, 0, 100, 0), block(1, 1, 0, 100, 50)])
    assert beside(steps((0, 110)), blocks, 2) == (True,)
    assert beside(steps((0, 110)), blocks, 1) == (False,)


def test_what_nothing_tells_is_unknown():
    alone = pl.DataFrame([block(1, 0, 0, 100, 0)])
    assert beside(steps((5, 110)), alone, 1) == (None,)
    silent = alone.with_columns(delayed_ns=pl.lit(-1))
    assert beside(steps((0, 110)), silent, 1) == (None,)


def test_a_hypervisor_that_takes_processors_away_is_said_and_no_verdict_is_confident(run):
    often = Stolen(hostname="guest", shares=(0.0,) * 8 + (0.2,) * 2)
    seldom = Stolen(hostname="other", shares=(0.0,) * 9 + (0.2,))
    (said,) = warnings(run.tables.blocks, run.plan, (often, seldom))
    assert said.startswith("contended: in 2 of 10 samples of guest the hypervisor gave more than 5%")
    assert doubts(run.tables.blocks, run.plan, (often, seldom)) == (
        "the hypervisor took processor time away from guest, so this is a hint, not a finding",
    )
    assert (
        warnings(run.tables.blocks, run.plan, (seldom,))
        == doubts(run.tables.blocks, run.plan, (seldom,))
        == ()
    )


def test_a_warning_about_contention_is_found_again_by_its_beginning(run):
    tables = delayed(run, pl.col("arm").is_in(["bare_one", "bare_all"]), 1.2 * CONTENDED)
    assert run.analysis.quality.contended == ()
    (found,) = replace(run.analysis.quality, warnings=warnings(tables.blocks, run.plan)).contended
    assert "compute blocks waited for a core" in found
