"""Strategies side by side: each one's points are those of its own blocks, and ratios are of the same rounds."""

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.about import Ending
from scaling.analysis.analyze import FRAMES, analyze_strategies, of_strategies
from scaling.analysis.results import PeakMemory, TrialStatus
from scaling.settings.run import Vary
from scaling.settings.schedule import OF_NONE

LATER, SLOWER = 10**6, 1.25
"""Ids of the second strategy's blocks begin there; its steps last so many times as long."""


def side_by_side(run, slower=SLOWER):
    """A run's records as those of two strategies: the second one's blocks are the first one's, stretched."""
    spec = replace(run.plan.spec, vary=Vary(parallel=("ddp", "fsdp")))
    own = ~pl.col("arm").is_in(OF_NONE)
    blocks = run.tables.blocks.with_columns(case=pl.when(own).then(0).otherwise(pl.col("case")))
    frames = {"blocks": blocks}
    for name in FRAMES:
        first = frames.get(name, getattr(run.tables, name))
        second = first.filter(own).with_columns(block=pl.col("block") + LATER)
        if name == "blocks":
            second = second.with_columns(case=pl.lit(1, dtype=pl.Int64))
        if name == "steps":
            longer = (pl.col("end_ns") - pl.col("begin_ns")) * (slower - 1)
            second = second.with_columns(end_ns=pl.col("end_ns") + longer.cast(pl.Int64))
        frames[name] = pl.concat([first, second])
    return replace(run.tables, **frames), replace(run.plan, spec=spec)


def analyzed(tables, plan, memory=({}, {})):
    trials = tuple(TrialStatus(world_size=t.world_size, status="done") for t in plan.trials)
    return analyze_strategies(
        of_strategies(tables, plan), Ending(duration_s=60.0, launches=1, trials=trials), memory
    )


@pytest.fixture(scope="module")
def run(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 4)).without_noise())


def test_the_first_one_has_the_figures_of_a_run_of_it_alone(run):
    found = analyzed(*side_by_side(run))
    assert found.points == run.analysis.points
    assert found.strategies[0].points == found.points


def test_ratios_are_of_the_same_rounds(run):
    first, second = analyzed(*side_by_side(run)).strategies
    against = {a.world_size: a for a in second.against_first}
    assert against[4].throughput.value == pytest.approx(1 / SLOWER, rel=1e-6)
    assert against[4].distinguishable
    assert [a.throughput for a in first.against_first] == [None, None]


def test_equal_strategies_are_not_told_apart(run):
    _, second = analyzed(*side_by_side(run, slower=1.0)).strategies
    assert not any(a.distinguishable for a in second.against_first)


def test_blocks_of_no_strategy_are_shared(run):
    tables, plan = side_by_side(run)
    first, second = of_strategies(tables, plan)
    for arm in OF_NONE:
        shared = [
            one.tables.blocks.lazy().filter(pl.col("arm") == arm).collect().height for one in (first, second)
        ]
        assert shared[0] == shared[1] == run.tables.blocks.filter(pl.col("arm") == arm).height
    assert first.plan.spec.parallel.name == "ddp"
    assert second.plan.spec.parallel.name == "fsdp"


def test_each_has_its_own_memory_and_mesh(run):
    held = ({4: PeakMemory(parameters_bytes=400)}, {4: PeakMemory(parameters_bytes=100)})
    first, second = analyzed(*side_by_side(run), held).strategies
    assert (first.memory.parameters_bytes, second.memory.parameters_bytes) == (400, 100)
    assert (first.parallel.replicate, second.parallel.shard) == (4, 4)


def test_one_that_ran_no_step_did_not_fit(run):
    tables, plan = side_by_side(run)
    gone = (
        tables.blocks.filter((pl.col("case") == 1) & (pl.col("world_size") == 4))
        .select("launch", "block")
        .unique()
    )
    kept = {name: getattr(tables, name).join(gone, on=["launch", "block"], how="anti") for name in FRAMES}
    _, second = analyzed(replace(tables, **kept), plan).strategies
    assert [p.status for p in second.points] == ["done", "oom"]
