"""Trials out of several launches: each is read within launches that measured it whole."""

from dataclasses import replace

import polars as pl
import pytest
from support.tables import loaded

from scaling.analysis.about import launch_sentences
from scaling.analysis.decompose.own_loop import other_batches, usable
from scaling.analysis.decompose.trials import RunRecords, counted
from scaling.analysis.predict.change import Change
from scaling.analysis.predict.predictions import predict
from scaling.analysis.predict.sources import read_sources
from scaling.records.tables import SCHEMAS, in_memory, of_launches
from scaling.settings.plan import OWN_LOOP

FRAMES = ("blocks", "steps", "buckets", "fabric")
LATE = pl.col("world_size") == 4
ALONE = pl.col("arm") == "bare_one"


@pytest.fixture(scope="module")
def weak(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2, 4), rounds=4, steps=6))


@pytest.fixture(scope="module")
def strong(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2, 4), mode="strong", batch=64, rounds=4, steps=6))


def kept(tables, rows):
    """Only some rows of every frame."""
    return replace(tables, **{name: getattr(tables, name).filter(rows) for name in FRAMES})


def launched(tables, launch, *, ended=True):
    """The same records as those of another launch."""
    frames = {name: getattr(tables, name).with_columns(launch=pl.lit(launch, pl.Int64)) for name in FRAMES}
    state = "done" if ended else None
    ranks = tuple(replace(r, launch=launch, ended=ended, state=state) for r in tables.ranks)
    return replace(tables, ranks=ranks, **frames)


def slower(tables, factor):
    """Every stamp and duration stretched."""

    def stretch(frame):
        times = [name for name in frame.columns if name.endswith("_ns")]
        return frame.with_columns((pl.col(times) * factor).cast(pl.Int64))

    return replace(tables, **{name: stretch(getattr(tables, name)) for name in FRAMES})


def together(*parts):
    frames = {name: pl.concat([getattr(part, name) for part in parts]) for name in FRAMES}
    return replace(parts[0], ranks=tuple(r for part in parts for r in part.ranks), **frames)


def trial(run, world_size):
    return next(t for t in run.plan.trials if t.world_size == world_size)


def where(run, tables):
    return {t.world_size: sorted(counted(tables, run.plan, t)) for t in run.plan.trials}


def test_one_launch_is_where_everything_comes_from(weak):
    assert where(weak, weak.tables) == {1: [0], 2: [0], 4: [0]}
    assert {t.launches for t in weak.analysis.trials} == {(0,)}


def test_launches_that_measured_it_whole_count_and_cut_off_ones_do_not(weak):
    cut = kept(launched(weak.tables, 0, ended=False), pl.col("round") < 2)
    tables = together(cut, launched(weak.tables, 1), launched(weak.tables, 2))
    assert where(weak, tables) == {1: [1, 2], 2: [1, 2], 4: [1, 2]}
    analysis = weak.analyze(tables)
    assert any("launch 0 was cut off and is not counted" in line for line in analysis.quality.warnings)


def test_a_prediction_starts_from_the_launches_that_count(weak):
    cut = slower(kept(launched(weak.tables, 0, ended=False), pl.col("round") < 2), 2.0)
    tables = together(cut, *(launched(weak.tables, k) for k in (1, 2, 3)))
    for source in read_sources(RunRecords(tables, weak.plan)):
        point = next(p for p in weak.analyze(tables).points if p.world_size == source.world_size)
        step = predict(source, Change())["step"]
        assert step.value / 1e6 == pytest.approx(point.step_ms.value)
        assert (source.units, source.groups) == (step.n, 1) == (point.step_ms.n, 1) == (3, 1)


def test_gradients_and_memory_are_those_of_the_launches_that_count(weak):
    """Launch 0 trained a model whose first parameter is another."""
    other = weak.tables.parameters.with_columns(
        launch=pl.lit(0, pl.Int64), bytes=pl.col("bytes") + 4 * (pl.col("index") == 0).cast(pl.Int64)
    )
    parameters = weak.tables.parameters.with_columns(launch=pl.lit(1, pl.Int64))
    cut = kept(launched(weak.tables, 0, ended=False), pl.col("round") < 2)
    tables = replace(
        together(cut, launched(weak.tables, 1)),
        parameters=pl.concat([other, parameters]),
        memory=pl.concat([weak.tables.memory.with_columns(launch=pl.lit(k, pl.Int64)) for k in (0, 1)]),
    )
    alone = replace(launched(weak.tables, 1), parameters=parameters)
    expected = [source.gradients.sizes for source in read_sources(RunRecords(alone, weak.plan))]
    assert expected
    assert [s.gradients.sizes for s in read_sources(RunRecords(tables, weak.plan))] == expected
    chosen = loaded(of_launches(tables, frozenset({1})))
    assert {launch for name in SCHEMAS for launch in in_memory(getattr(chosen, name))["launch"]} == {1}


def test_cut_off_launches_count_with_others_of_their_kind_where_there_is_no_better(weak):
    cut = [kept(launched(weak.tables, k, ended=False), pl.col("round") < 2) for k in (0, 1)]
    assert where(weak, together(*cut)) == {1: [0, 1], 2: [0, 1], 4: [0, 1]}
    assert weak.analyze(together(*cut)).points[2].efficiency.n == 4


def test_half_a_round_each_of_two_launches_makes_no_pair(weak):
    """Launch 0 has no baseline and launch 1 no probe: nothing of one is held against the other."""
    first = kept(launched(weak.tables, 0, ended=False), (pl.col("round") == 0) & ~ALONE)
    second = kept(launched(weak.tables, 1, ended=False), (pl.col("round") == 0) & (pl.col("arm") != "probe"))
    tables = together(first, second)
    assert all(len(launches) == 1 for launches in where(weak, tables).values())
    assert weak.analyze(tables).points[2].efficiency is None or counted(
        tables, weak.plan, trial(weak, 4)
    ) == {1}


def test_a_trial_left_over_is_held_against_its_own_launchs_baseline(strong):
    """Launch 1 runs on a machine half as fast: mixed with launch 0's baseline, efficiency would halve."""
    first = kept(strong.tables, ~LATE)
    second = launched(slower(kept(strong.tables, LATE | (ALONE & (pl.col("world_size") == 1))), 2), 1)
    analysis = strong.analyze(together(first, second))
    assert {t.world_size: t.launches for t in analysis.trials} == {1: (0,), 2: (0,), 4: (1,)}
    for found, whole in zip(analysis.points, strong.analysis.points, strict=True):
        assert found.efficiency.value == pytest.approx(whole.efficiency.value, rel=1e-6)
    assert analysis.points[2].step_ms.value == pytest.approx(
        2 * strong.analysis.points[2].step_ms.value, rel=1e-6
    )
    assert any("different launches (1: 0; 2: 0; 4: 1)" in line for line in analysis.quality.warnings)


def test_without_a_baseline_of_its_own_there_is_no_efficiency(strong):
    analysis = strong.analyze(together(kept(strong.tables, ~LATE), launched(kept(strong.tables, LATE), 1)))
    assert analysis.points[2].step_ms is not None
    assert analysis.points[2].efficiency is None


def test_losses_still_add_up_over_launches(weak):
    tables = together(weak.tables, launched(slower(weak.tables, 2), 1))
    point = weak.analyze(tables).points[2]
    losses = [getattr(point.loss, name) for name in point.loss.__slots__]
    assert sum(x.value for x in losses if x) == pytest.approx(1 - point.efficiency.value, abs=1e-9)


def test_a_launch_left_out_beside_others_that_were_cut_off_too_is_not_called_measured_whole(weak):
    """Launch 0 crashed in its first round, launch 1 was stopped after some."""
    cut = launched(kept(weak.tables, pl.col("round") < 1), 0, ended=False)
    more = launched(weak.tables, 1, ended=False)
    (line,) = launch_sentences({4: [1]}, together(cut, more))
    assert line == "launch 0 was cut off and is not counted: other launches measured more of the same trials"
    whole = launched(weak.tables, 1)
    (line,) = launch_sentences({4: [1]}, together(cut, whole))
    assert line.endswith("launch 1 measured the same trials whole")


def test_of_three_launches_the_units_are_launches(weak):
    """More rounds would not make the interval narrower: what differs between launches does."""
    for many, unit in ((1, "4 rounds"), (3, "3 launches")):
        tables = together(*[slower(launched(weak.tables, k), 1 + k / 50) for k in range(many)])
        (line,) = weak.analyze(tables).quality.reached
        assert f"from {unit}" in line


# Own loops


@pytest.fixture(scope="module")
def own_counted(weak):
    """own_counted(how each launch of an own loop ended): the launches that count; None: without an end line."""
    plan = replace(weak.plan, source=OWN_LOOP, trials=(trial(weak, 4),))
    steps = kept(weak.tables, LATE & pl.col("arm").is_in(["plain", "probe"]))

    def loop(launch, state, rows=True):
        tables = launched(kept(steps, rows), launch, ended=False)
        return replace(tables, ranks=tuple(replace(rank, state=state) for rank in tables.ranks))

    def found(*states, first=True):
        """`first`: rows that launch 0 left."""
        launches = [loop(k, state, rows=True if k else first) for k, state in enumerate(states)]
        return sorted(counted(together(*launches), plan, plan.trials[0]))

    return found


def test_a_training_of_another_batch_is_another_one_and_named(weak):
    """A script with a folder of its own, run again with twice the batch: steps of the two make no mean."""
    plan = replace(weak.plan, source=OWN_LOOP, trials=(trial(weak, 4),))
    steps = kept(weak.tables, LATE & pl.col("arm").is_in(["plain", "probe"]))
    half = replace(steps, blocks=steps.blocks.with_columns(batch=pl.col("batch") // 2))
    both = together(launched(half, 0), launched(steps, 1))
    found = usable(both, plan)
    assert set(loaded(found).blocks["launch"]) == set(loaded(found).steps["launch"]) == {1}
    assert found.dropped_samples == steps.dropped_samples
    (line,) = other_batches(both, plan)
    batch = plan.trials[0].batch
    assert line.startswith(f"launch 0 is not counted: it trained with {batch // 2} samples")
    assert other_batches(launched(steps, 1), plan) == ()


def test_loops_that_wrote_their_end_all_count(own_counted):
    assert own_counted("done", "done") == [0, 1]
    assert own_counted("failed", "done") == [0, 1]  # what was measured before an exception is as good


def test_a_loop_without_an_end_does_not_count_beside_one_that_has_it(own_counted):
    assert own_counted("done", None) == [0]


def test_loops_without_an_end_count_together_where_none_has_one(own_counted):
    assert own_counted(None, None) == [0, 1]
    assert own_counted(None, None, first=pl.col("arm") == "plain") == [1]  # not one whole round
