"""Which blocks of bare compute had to wait for a core, and which steps ran beside them."""

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.decompose.timeline import histories
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.quality.contention import (
    CONTENDED,
    Stolen,
    alone,
    beside,
    count,
    doubts,
    judged,
    unquiet,
    warnings,
)
from scaling.analysis.results import Measured, Overhead, Point
from scaling.settings.plan import OWN_LOOP

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
    assert count(judged(run.tables, run.plan)) == (0, bare)
    first = arms & (pl.col("round") == 0)
    tables = delayed(run, first, 1.2 * CONTENDED)
    assert count(judged(tables, run.plan)) == (run.tables.blocks.filter(first).height, bare)
    assert count(judged(delayed(run, first, 0.8 * CONTENDED), run.plan)) == (0, bare)


def test_where_gradients_travel_a_wait_proves_nothing(run):
    tables = delayed(run, pl.col("arm").is_in(["plain", "probe", "ddp_solo"]), 0.5)
    assert count(judged(tables, run.plan))[0] == 0
    assert not any(any(history.contended) for history in histories(RunRecords(tables, run.plan)))


def test_steps_of_a_contended_round_are_marked_and_no_others(run):
    tables = delayed(run, pl.col("arm").is_in(["bare_one", "bare_all"]) & (pl.col("round") == 2), 0.5)
    for history, trial in zip(histories(RunRecords(tables, run.plan)), run.plan.trials, strict=True):
        rows = tables.steps.filter(
            (pl.col("world_size") == trial.world_size)
            & (pl.col("rank") == 0)
            & ((pl.col("arm") == "plain") | ((pl.col("arm") == "probe") & ~pl.col("detailed")))
        ).sort("begin_ns")
        assert history.contended == tuple(number == 2 for number in rows["round"])


def test_the_nearest_block_of_the_round_decides():
    blocks = pl.DataFrame([block(1, 0, 0, 100, 50), block(2, 0, 300, 400, 0), block(3, 0, 0, 9, 9, number=1)])
    assert beside(steps((0, 110), (0, 290), (0, 410)), alone(blocks), 1) == (True, False, False)


def test_any_rank_of_the_world_size_will_do_and_no_other():
    blocks = pl.DataFrame([block(1, 0, 0, 100, 0), block(1, 1, 0, 100, 50)])
    assert beside(steps((0, 110)), alone(blocks), 2) == (True,)
    assert beside(steps((0, 110)), alone(blocks), 1) == (False,)


def test_what_nothing_tells_is_unknown():
    quiet = pl.DataFrame([block(1, 0, 0, 100, 0)])
    assert beside(steps((5, 110)), alone(quiet), 1) == (None,)
    silent = quiet.with_columns(delayed_ns=pl.lit(-1))
    assert beside(steps((0, 110)), alone(silent), 1) == (None,)


def test_a_hypervisor_that_takes_processors_away_is_said_and_no_verdict_is_confident(run):
    often = Stolen(hostname="guest", shares=(0.0,) * 8 + (0.2,) * 2)
    seldom = Stolen(hostname="other", shares=(0.0,) * 9 + (0.2,))
    (said,) = warnings(judged(run.tables, run.plan), run.plan, (often, seldom))
    assert said.startswith("contended: in 2 of 10 samples of guest the hypervisor gave more than 5%")
    assert doubts(judged(run.tables, run.plan), run.plan, (often, seldom)) == (
        "the hypervisor took processor time away from guest, so this is a hint, not a finding",
    )
    assert (
        warnings(judged(run.tables, run.plan), run.plan, (seldom,))
        == doubts(judged(run.tables, run.plan), run.plan, (seldom,))
        == ()
    )


def test_a_warning_about_contention_is_found_again_by_its_beginning(run):
    tables = delayed(run, pl.col("arm").is_in(["bare_one", "bare_all"]), 1.2 * CONTENDED)
    assert run.analysis.quality.contended == ()
    (found,) = replace(run.analysis.quality, warnings=warnings(judged(tables, run.plan), run.plan)).contended
    assert "compute blocks waited for a core" in found


def loop(run, *, waiting, helpers, cores=2):
    """The run as a loop of one's own, whose blocks of two ranks waited and had helper threads for such shares."""
    wall = pl.col("end_ns") - pl.col("begin_ns")
    blocks = run.tables.blocks.filter((pl.col("world_size") == 2) & pl.col("arm").is_in(["plain", "probe"]))
    blocks = blocks.with_columns(
        delayed_ns=(wall * waiting).cast(pl.Int64),
        thread_cpu_ns=(wall * (1 - waiting)).cast(pl.Int64),
        cpu_ns=(wall * (1 - waiting + helpers)).cast(pl.Int64),
    )
    ranks = tuple(replace(rank, cores=cores) for rank in run.tables.ranks if rank.rank < 2)
    topology = replace(run.plan.spec.topology, hosts=1, ranks_per_host=2)
    plan = replace(run.plan, source=OWN_LOOP, spec=replace(run.plan.spec, topology=topology))
    return replace(run.tables, blocks=blocks, ranks=ranks), plan


def test_a_loop_that_waits_more_than_its_own_threads_explain_is_contended(run):
    tables, plan = loop(run, waiting=0.38, helpers=0.05)
    found = judged(tables, plan)
    assert count(found) == (found.height, found.height) != (0, 0)
    (said,) = warnings(found, plan)
    assert said.startswith(f"contended: {found.height} of {found.height} blocks of steps waited for a core")
    assert "other programs or this run's own data workers" in said
    assert len(doubts(found, plan)) == 1
    steps_of = tables.steps.filter((pl.col("world_size") == 2) & (pl.col("arm") == "plain"))
    assert set(beside(steps_of, found, 2)) == {True}


def test_a_loop_whose_own_threads_fill_the_cores_is_not(run):
    """Two ranks on two cores, each with a helper thread: the helpers run while the ranks wait."""
    tables, plan = loop(run, waiting=0.38, helpers=0.40)
    found = judged(tables, plan)
    assert count(found)[0] == 0
    assert doubts(found, plan) == ()
    (said,) = warnings(found, plan)
    assert said.startswith("the ranks waited for a core 38% of the time, and their own threads may be why")


@pytest.mark.parametrize(
    ("waiting", "helpers", "cores", "contended"),
    [
        (0.04, 0.0, 2, False),  # less than is notable
        (0.45, 0.0, 1, False),  # two ranks on one core: each waits for the other
        (0.60, 0.0, 1, True),  # and more than that for a third
        (0.20, 0.15, 4, True),  # two spare cores: helpers of 0.15 leave at least one free
        (0.20, 0.45, 4, False),
    ],
)
def test_what_the_ranks_of_a_host_can_cause_themselves(run, waiting, helpers, cores, contended):
    tables, plan = loop(run, waiting=waiting, helpers=helpers, cores=cores)
    assert bool(count(judged(tables, plan))[0]) is contended


def test_a_loop_whose_cores_are_unknown_is_not_judged(run):
    tables, plan = loop(run, waiting=0.38, helpers=0.0, cores=0)
    assert judged(tables, plan).is_empty()


def test_a_training_by_cases_is_judged_by_the_same_rule(run):
    tables, plan = loop(run, waiting=0.38, helpers=0.05)
    training = replace(tables, blocks=tables.blocks.with_columns(arm=pl.lit("training")))
    by_cases = replace(plan, source=run.plan.source)
    assert count(judged(training, by_cases))[0] == training.blocks.height


def test_a_machine_that_is_not_quiet_says_for_what_how_long_and_who_waited():
    apart = Overhead(equal_arms_apart=Measured(0.12, n=12))
    noisy = Point(world_size=2, hosts=1, status="done", efficiency=Measured(0.8, 0.5, 1.1, 3), overhead=apart)
    busy = Stolen(hostname="a", shares=(), pressed={"cpu": 0.31, "memory": 0.0, "io": 0.04})
    quiet, waited = unquiet(noisy, 6.0, [busy])
    assert "not quiet enough for less than 12% of the step" in quiet
    assert "for 3% it takes about 48 rounds (4 min 48 s), or a quieter machine" in quiet
    assert waited == "meanwhile some process waited for a core 31%, memory 0%, a disk 4% of the time"
    noisier = replace(noisy, overhead=Overhead(equal_arms_apart=Measured(0.5, n=12)))
    assert unquiet(noisier, 6.0)[0].endswith("for 3% it takes a quieter machine")
    still = replace(noisy, overhead=Overhead(equal_arms_apart=Measured(0.02, n=12)))
    assert unquiet(still, 6.0, [busy]) == ()
