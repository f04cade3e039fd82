"""The base of efficiency where no rank ran strong scaling's whole batch, or the whole model, alone."""

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.compare.runs import compare
from scaling.analysis.decompose.loss import SLOW_BASE, is_split
from scaling.analysis.results import Measured
from scaling.report.answer import answer
from scaling.settings.schedule import ALONE

FRAMES = ("blocks", "steps", "buckets", "fabric")


@pytest.fixture(scope="module")
def strong(cluster):
    return cluster.Truth(mode="strong", batch=64, rounds=4, steps=6)


@pytest.fixture(scope="module")
def never_asked(measure, strong):
    return measure(replace(strong, world_sizes=(2, 4)))


@pytest.fixture(scope="module")
def whole(measure, strong):
    return measure(replace(strong, world_sizes=(1, 2, 4)))


@pytest.fixture(scope="module")
def out_of_memory(whole):
    """World size 1 left nothing."""
    of_others = pl.col("world_size") > 1
    tables = {name: getattr(whole.tables, name).filter(of_others) for name in FRAMES}
    return replace(whole, analysis=whole.analyze(replace(whole.tables, **tables)))


@pytest.mark.parametrize("name", ["never_asked", "out_of_memory"])
def test_the_smallest_world_size_is_the_base(name, request):
    run = request.getfixturevalue(name)
    two, four = run.point(2), run.point(4)
    assert four.base_world_size == 2
    assert four.efficiency.value == pytest.approx(2 * two.step_ms.value / (4 * four.step_ms.value), rel=1e-3)
    assert four.efficiency.low < four.efficiency.value < four.efficiency.high
    assert four.speedup.value == pytest.approx(2 * four.efficiency.value)
    assert (two.efficiency, two.speedup) == (None, None)  # it is not held against itself


@pytest.mark.parametrize("name", ["never_asked", "out_of_memory"])
def test_then_the_loss_is_not_known_and_all_of_it_is_said(name, request):
    run = request.getfixturevalue(name)
    assert [point.loss for point in run.analysis.points] == [None] * len(run.analysis.points)
    (said,) = [line for line in run.analysis.quality.warnings if "whole batch alone" in line]
    assert "efficiency and speedup are relative to 2 ranks" in said
    (verdict,) = [v for v in run.analysis.verdicts if v.world_size == 4 and v.cause == "undecided"]
    assert "no rank ran the whole batch alone" in verdict.evidence[0]
    assert " of the throughput a rank at 2 ranks" in answer(run.analysis)
    assert "ideal" not in answer(run.analysis)


def test_no_comparison_takes_that_base_for_a_rank_alone(never_asked, whole):
    found = compare(whole.analysis, never_asked.analysis, whole.plan, never_asked.plan)
    assert [(p.world_size, p.causes) for p in found.points] == [(n, {"compute": None}) for n in (2, 4)]


def test_one_rank_with_the_whole_batch_is_the_base_where_there_is_one(whole):
    assert {point.base_world_size for point in whole.analysis.points} == {1}
    assert whole.point(4).loss is not None
    assert not [line for line in whole.analysis.quality.warnings if "whole batch alone" in line]


@pytest.fixture(scope="module")
def no_room(measure, cluster):
    """Weak scaling whose model was trained by several ranks alone: it has no block of one rank by itself."""
    run = measure(cluster.Truth(rounds=4, steps=6, world_sizes=(2, 4)))
    together = ~pl.col("arm").is_in(ALONE)
    tables = {name: getattr(run.tables, name).filter(together) for name in ("blocks", "steps", "buckets")}
    return replace(run, analysis=run.analyze(replace(run.tables, **tables)))


def test_a_model_that_no_rank_holds_alone_is_held_against_the_smallest_world_size(no_room):
    two, four = no_room.point(2), no_room.point(4)
    assert four.base_world_size == 2
    assert four.efficiency.value == pytest.approx(two.step_ms.value / four.step_ms.value, rel=1e-3)
    assert four.efficiency.low < four.efficiency.value < four.efficiency.high
    assert four.speedup.value == pytest.approx(2 * four.efficiency.value)
    assert (two.efficiency, two.speedup, four.efficiency_loaded) == (None, None, None)


def test_and_what_that_hides_is_said(no_room):
    assert [point.loss for point in no_room.analysis.points] == [None, None]
    (said,) = [line for line in no_room.analysis.quality.warnings if "the whole model alone" in line]
    assert "efficiency and speedup are relative to 2 ranks" in said
    assert "what 2 ranks lose against one is hidden" in said
    (verdict,) = [v for v in no_room.analysis.verdicts if v.world_size == 4 and v.cause == "undecided"]
    assert "no rank ran the whole model alone" in verdict.evidence[0]
    assert " of the throughput a rank at 2 ranks" in answer(no_room.analysis)


@pytest.mark.parametrize(
    ("half_width", "split"),
    [(0.01, True), (0.05, True), (0.08, False), (2.4, False)],
)
def test_latency_is_told_from_bandwidth_where_the_fit_tells_more_than_their_sum(half_width, split):
    """Beside a rank that is late by 40 of 56 ms, latency once was 0.60 +-2.37 of the step, and both were 0.057."""
    latency, both = Measured(0.03, 0.03 - half_width, 0.03 + half_width, 4), Measured(0.057, 0.041, 0.072, 4)
    assert is_split(latency, both) is split


@pytest.mark.parametrize(("rank", "told"), [(0, 1), (2, 0)])
def test_a_slow_rank_that_ran_the_whole_batch_alone_is_said_to_be_the_base(
    measure, cluster, strong, rank, told
):
    slow = cluster.Straggler(rank=rank, extra_ns=20e6, alone=True)
    run = measure(replace(strong, world_sizes=(1, 4), stragglers=(slow,)))
    assert run.point(4).straggler.rank == rank
    assert run.analysis.quality.warnings.count(SLOW_BASE) == told
