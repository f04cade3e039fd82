"""Transfer by all clocks together, against the least duration over ranks."""

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.quality.memory import clock_warnings


@pytest.fixture(scope="module")
def run(measure, cluster):
    late = cluster.Straggler(rank=1, extra_ns=80e6)
    truth = cluster.Truth(world_sizes=(4,), stragglers=(late,), rounds=4, channels=1, clock_bound_ns=0)
    return measure(truth)


def apart(run, ns):
    """The late rank's stamps moved, as a clock does that was tied to the host's wrongly."""
    moved = pl.when(pl.col("rank") == 1).then(ns).otherwise(0)
    names = ("ready_ns", "launch_ns", "done_ns")
    buckets = run.tables.buckets.with_columns(**{name: pl.col(name) + moved for name in names})
    return run.analyze(replace(run.tables, buckets=buckets))


def share(analysis):
    return analysis.points[-1].comm.least_share


def test_the_last_rank_to_arrive_does_not_wait(run):
    assert share(apart(run, 0)).value == pytest.approx(1.0, abs=1e-3)
    assert clock_warnings(apart(run, 0).points, run.plan.spec) == ()


def test_clocks_that_are_apart_are_seen_by_it(run):
    analysis = apart(run, -60_000_000)
    assert share(analysis).high < 0.8
    (said,) = clock_warnings(analysis.points, run.plan.spec)
    assert said.startswith("at 4 ranks the collectives' shortest duration on any one rank's clock")
    assert said in analysis.quality.warnings


def test_on_hosts_own_clocks_it_is_a_number_and_no_warning(run):
    topology = replace(run.plan.spec.topology, device="cpu", backend="gloo")
    assert clock_warnings(apart(run, -60_000_000).points, replace(run.plan.spec, topology=topology)) == ()


def test_without_communication_there_is_nothing_to_check(measure, cluster):
    alone = measure(cluster.Truth(world_sizes=(1,), rounds=3))
    assert alone.analyze(alone.tables).points[0].comm is None
