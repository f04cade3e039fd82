"""The steps of rank 0 in the order in which they ran, and its host's state beside them."""

from dataclasses import replace

import polars as pl
import pytest

from scaling.analysis.decompose.timeline import histories
from scaling.analysis.decompose.trials import RunRecords

DAYS_NS = 3 * 86_400 * 10**9


@pytest.fixture(scope="module")
def run(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2), rounds=3))


def test_every_plain_and_light_probe_step_is_in_the_history(run):
    for history, trial in zip(histories(run.records), run.plan.trials, strict=True):
        assert history.world_size == trial.world_size
        blocks, steps = run.plan.spec.measure.rounds_max * 3, run.plan.spec.measure.steps
        assert len(history.arm) == blocks * steps
        assert {len(column) for column in history.columns.values()} == {len(history.arm)}
        assert set(history.arm) == {"plain", "probe"}


def test_history_is_in_the_order_of_time(run):
    for history in histories(run.records):
        time = history.columns["time_s"]
        assert list(time) == sorted(time)
        assert time[0] >= 0


def test_plain_steps_have_no_parts_and_probe_steps_have_all(run):
    history = histories(run.records)[-1]
    parts = [name for name in history.columns if name not in {"time_s", "step_ms"}]
    for k, arm in enumerate(history.arm):
        assert history.columns["step_ms"][k] > 0
        assert all((history.columns[p][k] is None) == (arm == "plain") for p in parts)


def test_each_step_has_the_sample_next_to_it_and_none_that_is_far(run):
    steps = run.tables.steps.filter(run.tables.steps["rank"] == 0)
    begin, end = steps["begin_ns"].min(), steps["begin_ns"].max()
    middle = (begin + end) // 2
    near = [
        {"time_ns": begin, "gpu/sm_mhz": 1400.0},
        {"time_ns": end, "gpu/sm_mhz": 1200.0, "gpu/power_mw": 9e4},
    ]
    history = histories(run.records, {0: near})[-1]
    start = run.tables.steps["begin_ns"].min()
    for second, clock in zip(history.columns["time_s"], history.columns["gpu/sm_mhz"], strict=True):
        if min(second * 1e9 + start - begin, end - start - second * 1e9) < 2e9:
            assert clock == (1400.0 if start + second * 1e9 <= middle else 1200.0)
    far = [{"time_ns": end + 10**12, "gpu/sm_mhz": 1.0}]
    assert set(histories(run.records, {0: far})[-1].columns["gpu/sm_mhz"]) == {None}
    assert set(histories(run.records, {7: near})[-1].columns["gpu/sm_mhz"]) == {None}


def launches(tables, *ahead_ns):
    """The same records once a launch, each on a clock that is ahead by so much."""

    def one(frame, launch, ahead):
        stamps = [name for name in ("begin_ns", "end_ns") if name in frame.columns]
        return frame.with_columns(pl.lit(launch, pl.Int64).alias("launch"), pl.col(stamps) + ahead)

    frames = {
        name: pl.concat([one(getattr(tables, name), k, ahead) for k, ahead in enumerate(ahead_ns)])
        for name in ("blocks", "steps", "buckets", "fabric")
    }
    ranks = tuple(replace(rank, launch=k) for k in range(len(ahead_ns)) for rank in tables.ranks)
    return replace(tables, ranks=ranks, **frames)


def test_launches_follow_each_other_whatever_clock_each_of_them_had(run):
    again = launches(run.tables, DAYS_NS, 0, 2 * DAYS_NS)
    blocks = run.tables.blocks
    span_s = (blocks["end_ns"].max() - blocks["begin_ns"].min()) / 1e9
    for alone, found in zip(histories(run.records), histories(RunRecords(again, run.plan)), strict=True):
        once = alone.columns["time_s"]
        expected = [second + k * span_s for k in range(3) for second in once]
        assert list(found.columns["time_s"]) == pytest.approx(expected)
        assert found.arm == alone.arm * 3
