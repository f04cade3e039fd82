"""What details cost the step, and what rests on them."""

import dataclasses

import polars as pl
import pytest

from scaling.analysis.about import Ending
from scaling.analysis.analyze import analyze
from scaling.analysis.quality.details import NOT_PROVED, details
from scaling.analysis.results import TrialStatus

MS = 10**6


@pytest.fixture(scope="module")
def run(measure, cluster):
    """Rank 1 is late by 12 ms in its input, of four ranks whose step has 40 ms."""
    late = cluster.Straggler(rank=1, extra_ns=12e6, phase="input")
    return measure(cluster.Truth(world_sizes=(4,), rounds=5, steps=5, stragglers=(late,), step_noise=0.0))


def held_up(tables, rank, by_ms):
    """The run had details held up a rank's backward for as long as it waits behind it now, by at most `by_ms`."""
    here = (pl.col("arm") == "probe") & pl.col("detailed") & (pl.col("rank") == rank)
    by = pl.min_horizontal(pl.col("sync_end_ns") - pl.col("compute_end_ns"), by_ms * MS)
    return tables.having(
        {
            "steps": tables.steps.with_columns(
                pl.when(here)
                .then(pl.col("compute_end_ns") + by)
                .otherwise("compute_end_ns")
                .alias("compute_end_ns")
            )
        }
    )


def test_details_that_leave_the_ranks_compute_alone_are_used(run):
    found = run.analysis.quality.details
    assert (found.disturbs, found.unused) == (False, "")
    assert found.over_light.value == pytest.approx(1, abs=0.01)
    assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3]
    assert run.point(4).loss.communication is None


def test_where_a_rank_stands_still_behind_a_stamp_no_cause_rests_on_details(run):
    """The late rank is named with its cost all the same, and what all ranks wait alike is communication."""
    analysis = run.analyze(held_up(run.tables, 0, 10))
    found, point = analysis.quality.details, analysis.points[0]
    assert found.disturbs
    assert found.unused.startswith("stamps of single collectives disturb this step: rank 0 computes ")
    assert (point.straggler.rank, point.straggler.phase) == (1, "input")
    assert point.straggler.cost_ms.value == pytest.approx(12, rel=0.05)
    assert point.loss.link_bandwidth is point.loss.link_latency is point.closure is None
    waited = run.records.trial(run.plan.trials[0].world_size).arm("probe", detailed=False, ranks={1})
    assert point.parts_ms.exposed_transfer.value == pytest.approx(waited["exposed"].mean() / MS, rel=0.01)
    assert point.comm.busbw_gbit_s.value == pytest.approx(run.point(4).comm.busbw_gbit_s.value, rel=0.01)
    causes = {v.cause: v for v in analysis.verdicts}
    assert {"straggler", "communication"} <= set(causes)
    assert not {"link_bandwidth", "link_latency"} & set(causes)
    assert found.unused in causes["communication"].evidence[-1]
    total = sum(x.value for f in dataclasses.fields(point.loss) if (x := getattr(point.loss, f.name)))
    assert total == pytest.approx(1 - point.efficiency.value, abs=1e-9)


def test_less_than_a_cause_needs_does_not_disturb(run):
    found = run.analyze(held_up(run.tables, 0, 0.5)).quality.details  # 1 % of the step
    assert not found.disturbs


def test_without_details_the_late_rank_and_what_all_wait_are_told_from_light_steps(run):
    place = (pl.col("arm") == "probe") & pl.col("detailed")
    tables = run.tables.having(
        {
            "steps": run.tables.steps.filter(~place),
            "buckets": run.tables.buckets.filter(pl.col("arm") != "probe"),
        }
    )
    analysis = run.analyze(tables)
    assert analysis.quality.details is None
    assert (analysis.points[0].straggler.rank, analysis.points[0].straggler.phase) == (1, "input")
    (waited,) = [v for v in analysis.verdicts if v.cause == "communication"]
    assert waited.evidence[-1].endswith("no details were recorded")


def test_over_nccl_on_a_real_device_none_is_used(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(2,), rounds=4, steps=4, channels=1))
    records = run.records.trial(run.plan.trials[0].world_size)
    assert details(records, run.plan, "").unused == ""
    assert details(records, run.plan, "NVIDIA H100 80GB HBM3").unused == NOT_PROVED
    ending = Ending(duration_s=1.0, launches=1, trials=(TrialStatus(world_size=2, status="done"),))
    real = analyze(run.records, dataclasses.replace(ending, device_name="NVIDIA H100 80GB HBM3"))
    assert real.points[0].loss.link_bandwidth is None
    assert real.points[0].loss.communication is not None
