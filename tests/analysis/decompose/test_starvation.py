"""Steps that wait for their batches: the share of it, and the workers that would end it."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose.starvation import _slowest, with_input
from scaling.analysis.statistics.rounds import Rounds
from scaling.report.answer import answer
from scaling.report.findings import loader_line
from scaling.settings.run import Data

MS = 1_000_000
FED_NS, WAIT_NS = MS, 30 * MS


@pytest.fixture(scope="module")
def starve(measure, cluster):
    """A run whose every step waits for its batch, as the rank files of one tell it."""

    def starved(*, workers=1, make_ns=70 * MS, make_cpu_ns=35 * MS, cores=8, train_cpu_ns=10 * MS, **causes):
        run = measure(cluster.Truth(input_ns=FED_NS + WAIT_NS, **causes))
        of_steps = pl.col("steps") + pl.col("lead_in")
        made = {
            "make_ns": pl.lit(make_ns),
            "make_cpu_ns": pl.lit(make_cpu_ns),
            "cpu_ns": of_steps * train_cpu_ns,
        }
        ranks = tuple(
            replace(r, cores=cores, fed_ns=dict.fromkeys((1, 2, 4), FED_NS)) for r in run.tables.ranks
        )
        tables = replace(run.tables, blocks=run.tables.blocks.with_columns(**made), ranks=ranks)
        data = Data(name="images", target="mine.Images", workers=workers)
        run = replace(run, plan=replace(run.plan, spec=replace(run.plan.spec, data=data)))
        return replace(run, analysis=run.analyze(tables))

    return starved


@pytest.fixture(scope="module")
def starved(starve):
    return starve()


def plain_ns(cluster, truth, n):
    plan = cluster.plan_of(truth)
    return cluster.expect(truth, plan.trials[truth.world_sizes.index(n)]).step_ns["plain"]


def fed_step_ns(cluster, n):
    """The same cluster's plain step with every batch ready."""
    truth = cluster.Truth(input_ns=FED_NS)
    return plain_ns(cluster, truth, n)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_share_is_what_a_fed_loader_would_save(starved, cluster, n):
    share = starved.point(n).loader.wait_share
    fed, waits = fed_step_ns(cluster, n), starved.expected.points[n].step_ns["plain"]
    assert share.value == pytest.approx(1 - fed / waits, abs=0.02)
    # one seed: not only in 95 of 100
    assert 1 - fed / waits == pytest.approx(share.value, abs=2 * share.half_width)


def test_the_verdict_is_input_and_names_the_workers(starved, cluster):
    for n in (1, 2, 4):
        (found,) = [v for v in starved.analysis.verdicts if (v.world_size, v.cause) == (n, "input")]
        assert found.share == starved.point(n).loader.wait_share
        assert found.confidence == "high"
        (remedy,) = found.try_
        needed = math.ceil(1.25 * 70e6 / fed_step_ns(cluster, n))
        assert remedy.overrides == f"data.workers={needed}"
        assert f"num_workers={needed}" in remedy.code
        assert remedy.predicted_gain.value == pytest.approx(1 / (1 - found.share.value))
    assert "a batch takes 70 ms, so 1 worker makes one every 70 ms" in found.evidence[0]
    assert "so the efficiency does not show this" in found.evidence[2]


def test_a_rank_that_waits_less_than_another_is_not_counted_twice(starve, cluster):
    run = starve(stragglers=(cluster.Straggler(rank=1, extra_ns=20e6, phase="input"),))
    truth = cluster.Truth(input_ns=FED_NS + WAIT_NS + 20e6, world_sizes=(1, 2, 4))
    lost = 1 - fed_step_ns(cluster, 2) / plain_ns(cluster, truth, 2)
    assert run.point(2).loader.wait_share.value == pytest.approx(lost, abs=0.02)


def test_where_the_cores_do_not_bear_it_no_number_of_workers_is_advised(starve):
    run = starve(make_cpu_ns=70 * MS, cores=1)
    (found,) = [v for v in run.analysis.verdicts if (v.world_size, v.cause) == (2, "input")]
    (remedy,) = found.try_
    assert (remedy.overrides, remedy.code[:30]) == ("", "decode, resize or cache the sa")
    assert "more workers do not help" in found.evidence[-1]


def test_a_rank_that_waits_for_its_batches_alone_is_named_and_counted_once(starve, cluster):
    """The mean over ranks is half of what the late one spends; removing the wait saves what that one spends."""
    run = starve(stragglers=(cluster.Straggler(rank=1, extra_ns=60e6, phase="input"),))
    point = run.point(2)
    assert point.loader.slowest_rank == 1
    assert point.loader.slowest_input_ms.value == pytest.approx(91, abs=3)
    found = [v for v in run.analysis.verdicts if v.world_size == 2 and v.cause in ("input", "straggler")]
    (late,) = found
    assert late.cause == "straggler"
    assert any(line.startswith("rank 1 spends 9") and "the others 3" in line for line in late.evidence)
    assert late.try_[0].overrides.startswith("data.workers=")


def test_equal_ranks_whose_waits_vary_are_not_named():
    """The largest of eight means is often 1.25 times their mean."""
    named = 0
    for seed in range(100):
        arms = {"input": np.random.default_rng(seed).exponential(20e6, (5, 4, 8)).mean(axis=1)}
        records = SimpleNamespace(by_rank=lambda *_arm, each=arms, **_more: each)
        named += bool(_slowest(records, Rounds({}, np.zeros(5, dtype=np.int64))))
    assert named <= 5


@pytest.mark.parametrize(("workers", "takes_ms"), [(1, 80 + 35), (0, 80)])
def test_the_cores_that_it_takes_hold_the_training_and_the_making(starve, cluster, workers, takes_ms):
    """Without workers the training's process makes the batches: its time has that in it."""
    run = starve(workers=workers, train_cpu_ns=80 * MS, make_cpu_ns=35 * MS)
    found = run.point(2).loader
    fed_ns = run.point(2).step_ms.value * 1e6 * (1 - found.wait_share.value)
    ranks_a_host = found.cores_needed * fed_ns / (takes_ms * MS)
    assert ranks_a_host == pytest.approx(1, rel=0.01)


def test_enough_workers_that_deliver_in_bunches_get_a_longer_queue(starve):
    run = starve(workers=4)
    (found,) = [v for v in run.analysis.verdicts if (v.world_size, v.cause) == (2, "input")]
    assert [r.overrides for r in found.try_] == ["data.prefetch=4"]


def test_made_up_batches_have_no_loader(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(1, 2), rounds=3))
    assert run.point(2).loader is None
    assert with_input((), run.point(2), run.plan) == ()


def test_in_words(starved):
    assert "% of every step waits for input" in answer(starved.analysis)
    line = loader_line(starved.point(2).loader)
    assert line.startswith("made by 1 worker a rank, a batch in 70")
    assert line.endswith("; 2 workers would do")
