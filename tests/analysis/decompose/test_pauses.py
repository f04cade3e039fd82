"""Long steps that come back and pauses, from the records of two ranks whose steps are otherwise alike."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose import pauses
from scaling.records.format import COLLECTION, EVALUATION, SAVE, PauseRecord
from scaling.records.tables import in_memory
from scaling.settings.plan import OWN_LOOP

MS = 1_000_000
RANKS, STEPS, USUAL_MS = 2, 200, 50


@pytest.fixture(scope="module")
def loop(measure, cluster):
    """(tables, plan) of a loop of two ranks: 20 rounds in each of which one block is near any record of `at`."""
    run = measure(cluster.Truth(world_sizes=(2,), rounds=12))
    kept = pl.col("arm").is_in(["plain", "probe"])
    frames = {name: getattr(run.tables, name).filter(kept) for name in ("blocks", "steps", "buckets")}
    return replace(run.tables, **frames), replace(run.plan, source=OWN_LOOP)


def record(step, more_ms, *, gap_ms=0.0, kind="", time_ns=0):
    """What a rank notes of a step; `time_ns` 0: at a time at which nothing was recorded."""
    return PauseRecord(
        time_ns=time_ns or step * USUAL_MS * MS - 10**15,
        gap_ns=int(gap_ms * MS),
        step=step,
        kind=kind,
        more_ns=int(more_ms * MS),
    )


def beside(loop, *of_ranks):
    tables, plan = loop
    ranks = tuple(replace(rank, pauses=tuple(of_ranks[rank.rank])) for rank in tables.ranks)
    return SimpleNamespace(
        **dict(zip(("pauses", "stalls"), pauses.beside(replace(tables, ranks=ranks), plan), strict=True))
    )


def test_every_twentieth_step_is_a_term_of_its_own_between_long_steps_at_random(loop):
    rng = np.random.default_rng(1)
    noise = [record(int(step), 30 + 20 * rng.random()) for step in rng.choice(STEPS, 25, replace=False)]
    late = [record(step, 500 + rng.normal(), gap_ms=505) for step in range(20, STEPS, 20)]
    waits = [record(step, 500 + rng.normal()) for step in range(20, STEPS, 20)]
    (stall,) = beside(loop, noise + late, waits).stalls
    assert (stall.every_steps, stall.where, stall.kind) == (20, "between steps, on rank 0", "unknown")
    assert stall.cost_ms.value == pytest.approx(25, rel=0.05)
    assert stall.longer_ms.holds(stall.longer_ms.value)


@pytest.mark.parametrize("share", [0.05, 0.15, 0.3])
def test_long_steps_at_random_come_back_at_no_distance(loop, share):
    found = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        steps = np.flatnonzero(rng.random(STEPS) < share)
        found += bool(beside(loop, [record(int(s), 20 * rng.lognormal()) for s in steps], []).stalls)
    assert found <= 1


def test_a_rank_that_waits_for_another_in_the_next_step_is_the_same_event(loop):
    late, waits = ([record(step + later, 200) for step in range(30, STEPS, 30)] for later in (0, 1))
    (stall,) = beside(loop, late, waits).stalls
    assert stall.longer_ms.value == pytest.approx(200)
    assert (stall.every_steps, stall.longer_ms.n) == (30, len(late))


def test_two_distances_are_told_apart(loop):
    logs = [record(step, 40) for step in range(10, STEPS, 10) if step % 40]
    saves = [record(step, 400) for step in range(40, STEPS, 40)]
    assert {stall.every_steps for stall in beside(loop, logs + saves, logs + saves).stalls} == {10, 40}


def test_pauses_are_counted_by_kind_and_a_wait_for_them_is_none(loop):
    evaluations = [record(step, 2000, gap_ms=2000, kind=EVALUATION) for step in (40, 95)]
    save = record(95, 500, gap_ms=2500, kind=SAVE)
    found = beside(loop, [*evaluations, save], [*evaluations, record(95, 500)])
    counted = [(pause.kind, pause.count, pause.seconds.value, pause.where) for pause in found.pauses]
    assert counted == [(EVALUATION, 2, 4.0, "between steps"), (SAVE, 1, 0.5, "between steps, on rank 0")]
    assert not found.stalls
    assert 0 < found.pauses[1].wall_share < found.pauses[0].wall_share <= 1


def test_records_that_stand_for_many_count_as_many(loop):
    logs = [replace(record(step, 6, kind="log"), count=3) for step in range(10, STEPS, 10)]
    (pause,) = beside(loop, logs, []).pauses
    assert (pause.count, pause.seconds.value) == (3 * len(logs), pytest.approx(6e-3 * len(logs)))


def test_a_collection_of_garbage_is_a_stall_at_any_distance(loop):
    steps = (17, 60, 111)
    (stall,) = beside(loop, [record(step, 90, kind=COLLECTION) for step in steps], []).stalls
    assert (stall.kind, stall.every_steps, stall.longer_ms.value) == (COLLECTION, None, pytest.approx(90))
    assert stall.cost_ms.value < 90 * len(steps) / STEPS + 1


def test_blocks_of_such_steps_are_left_out_unless_an_arm_would_be(loop):
    tables, plan = loop
    blocks = in_memory(tables.blocks.filter(pl.col("rank") == 0).sort("block"))
    plain = blocks.filter(pl.col("arm") == "plain")

    def left_out(ends):
        noted = tuple(record(20 * k, 1, kind=SAVE, time_ns=end) for k, end in enumerate(ends, 1))
        ranks = tuple(replace(rank, pauses=noted if rank.rank == 0 else ()) for rank in tables.ranks)
        return set(pauses.disturbed(replace(tables, ranks=ranks), plan)["block"])

    some = plain[::8]
    assert left_out(some["host_end_ns"].to_list()) == set(some["block"])
    assert left_out(plain["host_end_ns"].to_list()) == set()
