"""One world size: what holds whatever was measured."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.analysis.decompose import trials
from scaling.analysis.decompose.quantities import Sent
from scaling.analysis.decompose.trials import RunRecords
from scaling.records import files
from scaling.records.tables import Tables
from scaling.settings.plan import HARNESS, OWN_LOOP

FRAMES = ("blocks", "steps", "buckets", "fabric")
few = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def busy(measure, cluster):
    """Four ranks with something of every cause; rank 1 is late."""
    late = cluster.Straggler(rank=1, extra_ns=20e6)
    return measure(cluster.Truth(world_sizes=(4,), rounds=5, steps=6, stragglers=(late,)))


@pytest.fixture(scope="module")
def strong(measure, cluster):
    return measure(cluster.Truth(world_sizes=(1, 2, 4), mode="strong", batch=64, rounds=4, steps=6))


def changed(tables, change) -> Tables:
    """The tables with every frame passed through `change`."""
    return replace(tables, **{name: change(getattr(tables, name)) for name in FRAMES})


def leaves(value, path=""):
    """Numbers and names by where they stand."""
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in leaves(item, f"{path}.{key}").items()}
    if isinstance(value, list):
        return {k: v for i, item in enumerate(value) for k, v in leaves(item, f"{path}[{i}]").items()}
    return {path: value}


def numbers(analysis):
    """All of the points and the fabric, flat."""
    return leaves(files.encode({"points": analysis.points, "fabric": analysis.fabric}))


def assert_same(found, expected, rel=1e-6):
    assert found.keys() == expected.keys()
    for where, value in expected.items():
        if isinstance(value, float):
            assert found[where] == pytest.approx(value, rel=rel, abs=1e-9), where
        else:
            assert found[where] == value, where


def values_of(parts):
    """Values of the measured numbers among an object's fields."""
    fields = (getattr(parts, f.name) for f in dataclasses.fields(parts))
    return [x.value for x in fields if x is not None]


# The waterfall


@pytest.mark.parametrize("name", ["busy", "strong"])
def test_losses_add_up_to_the_lost_efficiency(name, request):
    run = request.getfixturevalue(name)
    for point in run.analysis.points:
        if point.world_size > 1:
            assert math.fsum(values_of(point.loss)) == pytest.approx(1 - point.efficiency.value, abs=1e-9)


@pytest.mark.parametrize(
    ("arm", "unknown"),
    [
        ("bare_all", {"neighbours", "strategy_overhead"}),
        ("ddp_solo", {"strategy_overhead", "overlap"}),
        ("fabric", {"link_latency"}),
    ],
)
def test_a_cause_that_was_not_measured_is_unknown_and_the_rest_adds_up(busy, arm, unknown):
    whole = busy.point(4).loss
    (point,) = busy.analyze(changed(busy.tables, lambda frame: frame.filter(pl.col("arm") != arm))).points
    missing = {f.name for f in dataclasses.fields(whole) if getattr(point.loss, f.name) is None}
    assert missing == unknown | {"small_batch", "imbalance", "communication", "clocks", "slower_compute"}
    assert math.fsum(values_of(point.loss)) == pytest.approx(1 - point.efficiency.value, abs=1e-9)


def test_without_a_baseline_there_is_a_step_time_and_no_loss(busy):
    (point,) = busy.analyze(
        changed(busy.tables, lambda frame: frame.filter(pl.col("arm") != "bare_one"))
    ).points
    assert point.step_ms == busy.point(4).step_ms
    assert (point.efficiency, point.speedup, point.loss) == (None, None, None)


def test_parts_add_up_to_the_probes_step(busy, strong):
    for run in (busy, strong):
        for point in run.analysis.points:
            assert math.fsum(values_of(point.parts_ms)) == pytest.approx(point.arms_ms.probe.value)


def test_efficiency_of_weak_scaling_is_the_baseline_over_the_step(busy):
    point = busy.point(4)
    assert point.efficiency.value == pytest.approx(point.arms_ms.bare_one.value / point.step_ms.value)
    assert point.speedup.value == pytest.approx(4 * point.efficiency.value)
    assert point.samples_per_s.value == pytest.approx(4 * 32e3 / point.step_ms.value)


def test_efficiency_of_strong_scaling_is_a_fair_share_of_the_whole_batch(strong):
    whole = strong.point(1).arms_ms.bare_one.value
    for n in (2, 4):
        point = strong.point(n)
        assert point.efficiency.value == pytest.approx(whole / (n * point.step_ms.value))
        assert point.loss.small_batch.value > 0


# One rank alone


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_one_rank_has_no_communication_and_says_unknown_rather_than_zero(measure, cluster, mode):
    run = measure(cluster.Truth(world_sizes=(1, 2), mode=mode, rounds=3))
    point = run.point(1)
    assert point.efficiency is not None
    assert (point.efficiency_loaded, point.closure, point.loss, point.straggler, point.comm) == (None,) * 5
    assert (point.parts_ms.exposed_transfer, point.parts_ms.exposed_skew) == (None, None)
    assert (point.arms_ms.bare_all, point.arms_ms.ddp_solo) == (None, None)
    assert min(values_of(point.parts_ms)) > 0
    assert all(level.world_size > 1 for level in run.analysis.fabric.levels)


def test_a_trial_without_records_is_its_status_and_nothing_else(busy):
    (point,) = busy.analyze(changed(busy.tables, lambda frame: frame.clear())).points
    assert (point.world_size, point.status) == (4, "done")
    assert (point.step_ms, point.efficiency, point.loss, point.comm) == (None,) * 4


# Names and units carry no meaning


@few
@given(names=st.permutations(range(4)))
@pytest.mark.slow
def test_other_names_for_the_ranks_change_nothing_but_names(busy, names):
    rename = {**dict(enumerate(names)), -1: -1}

    def renamed(frame):
        columns = [c for c in ("rank", "solo_rank") if c in frame.columns]
        return frame.with_columns(pl.col(columns).replace_strict(rename, return_dtype=pl.Int64))

    found, expected = numbers(busy.analyze(changed(busy.tables, renamed))), numbers(busy.analysis)
    where = ".points[0].straggler.rank"
    assert found.pop(where) == names[expected.pop(where)]
    assert_same(found, expected)


@few
@given(k=st.integers(2, 50))
@pytest.mark.slow
def test_times_in_another_unit_scale_times_and_rates_and_leave_ratios(busy, k):
    def slower(frame):
        stamps = [c for c in frame.columns if c.endswith("_ns")]
        return frame.with_columns(pl.col(stamps) * k)

    expected = numbers(busy.analysis)
    for where, value in expected.items():
        if isinstance(value, float):
            if "_ms" in where or "_us" in where:
                expected[where] = value * k
            elif any(rate in where for rate in (".busbw", ".algbw", "samples_per_s", "nominal_share")):
                expected[where] = value / k
    assert_same(numbers(busy.analyze(changed(busy.tables, slower))), expected)


@few
@given(seed=st.integers(0, 2**16))
@pytest.mark.slow
def test_the_order_of_rows_means_nothing(busy, seed):
    shuffled = changed(busy.tables, lambda frame: frame.sample(fraction=1, shuffle=True, seed=seed))
    assert_same(numbers(busy.analyze(shuffled)), numbers(busy.analysis))


# Clocks


def test_a_clock_that_is_ahead_and_says_so_changes_nothing(measure, cluster):
    truth = cluster.Truth(world_sizes=(4,), rounds=4, clock_bound_ns=0)
    ahead = replace(truth, clock_offset_ns=(0, 123_000_000, 0, -7_000_000_000))
    assert_same(numbers(measure(ahead).analysis), numbers(measure(truth).analysis))


def test_an_offset_known_to_a_bound_shifts_parts_by_no_more(measure, cluster):
    truth = cluster.Truth(world_sizes=(2,), rounds=4, clock_bound_ns=20_000)
    ahead = measure(replace(truth, clock_offset_ns=(0, 123_000_000))).point(2)
    right = measure(truth).point(2)
    assert ahead.step_ms.value == pytest.approx(right.step_ms.value, rel=1e-6)  # needs no common clock
    for name in ("exposed_transfer", "exposed_skew"):
        assert getattr(ahead.parts_ms, name).value == pytest.approx(
            getattr(right.parts_ms, name).value, abs=0.02
        )


def test_a_clock_that_drifts_is_followed_between_two_measurements(measure, cluster):
    truth = cluster.Truth(world_sizes=(2,), rounds=4, clock_bound_ns=0)
    drifting = measure(replace(truth, clock_drift_ppm=(0.0, 30.0))).point(2)
    right = measure(truth).point(2)
    for name in ("exposed_transfer", "exposed_skew"):
        assert getattr(drifting.parts_ms, name).value == pytest.approx(
            getattr(right.parts_ms, name).value, abs=0.01
        )


def test_an_offset_within_its_bound_is_left_alone(measure, cluster):
    """It may be the measurement's own error: ranks of one host share a clock."""
    truth = cluster.Truth(world_sizes=(2,), rounds=2, clock_offset_ns=(0, 15_000), clock_bound_ns=20_000)
    aligned, shifted = (measure(replace(truth, clock_offset_ns=x)) for x in ((), (0, 15_000)))
    begins = [
        run.tables.steps.filter(pl.col("rank") == 1).sort("block", "step")["begin_ns"]
        for run in (aligned, shifted)
    ]
    assert (begins[1] - begins[0]).unique().to_list() == [15_000]


# Own overhead


def test_the_probes_cost_is_measured_against_plain_and_against_plain_itself(measure, cluster):
    truth = replace(
        cluster.Truth(world_sizes=(2,), rounds=6, probe_light_ns=2e6).without_noise(), block_noise=1e-4
    )
    overhead = measure(truth).point(2).overhead
    step = 40e6  # about; the link hides none of the probe's cost, which comes before its last bucket
    assert overhead.probe_over_plain.value == pytest.approx(1 + 2e6 / step, abs=0.02)
    assert overhead.aa_floor.value == pytest.approx(1.0, abs=1e-3)


# Communication


def test_buckets_are_described_in_the_order_of_reduction(busy, cluster):
    comm = busy.point(4).comm
    truth = cluster.Truth()
    assert [b.bytes for b in comm.buckets] == [b.bytes for b in truth.buckets]
    assert comm.bytes_per_step == truth.payload
    ready = [b.ready_ms.value for b in comm.buckets]
    assert ready == sorted(ready)
    # rank 1 is 20 ms late, a quarter of it by the mean
    assert all(b.skew_ms.value > 10 for b in comm.buckets)


def test_replay_is_the_machines_own_curve_at_these_sizes(measure, cluster):
    """Nothing disturbs the simulated link in training: its share of the curve is 1."""
    comm = measure(cluster.Truth(world_sizes=(2,), channels=1, step_noise=0.0)).point(2).comm
    assert comm.curve_share.low - 0.002 < 1 < comm.curve_share.high + 0.002
    assert comm.nominal_share.value == pytest.approx(comm.busbw_gbit_s.value / (8 / cluster.Truth().beta_ns))


def test_no_nominal_link_no_share_of_it(measure, cluster):
    run = measure(cluster.Truth(world_sizes=(2,), hosts=1, ranks_per_host=2, rounds=3))
    assert run.point(2).comm.busbw_gbit_s is not None
    assert run.point(2).comm.nominal_share is None


def test_collectives_along_two_axes_have_no_share_of_one_link(measure, cluster, monkeypatch):
    """As HSDP's, of which some stay within a host: their rate together had been 122 % of the link between hosts."""
    axes = ("replicate", "shard")
    monkeypatch.setattr(trials, "Sent", lambda **of: Sent(**of | {"axis": axes[of["unit"] % 2]}))
    comm = measure(cluster.Truth(world_sizes=(2,), channels=1, rounds=3)).point(2).comm
    assert {one.communicator for one in comm.collectives} == set(axes)
    assert comm.busbw_gbit_s is not None
    assert comm.nominal_share is None


# How often gradients are reduced


@pytest.fixture(scope="module")
def six(measure, cluster):
    """A step of three buckets, each reduced twice."""
    each = [cluster.Bucket(bytes=size, at=at) for size, at in ((2**20, 0.2), (2**21, 0.3), (2**21, 0.4))]
    again = [replace(bucket, at=bucket.at + 0.5) for bucket in each]
    return measure(cluster.Truth(world_sizes=(2,), buckets=(*each, *again), rounds=3, steps=4))


def records_of(six, *, sent):
    """ddp_solo had the three buckets once, and `sent` of their bytes went over the wire."""
    solo = pl.col("arm") == "ddp_solo"
    whole = (pl.col("bytes") / sent).cast(pl.Int64)
    buckets = six.tables.buckets.filter(~solo | (pl.col("seq") < 3))
    buckets = buckets.with_columns(bytes=pl.when(solo).then(whole).otherwise(pl.col("bytes")))
    return RunRecords(replace(six.tables, buckets=buckets), six.plan).trial(six.plan.trials[0].world_size)


def trained(six, *, micro_steps, hook="none", source=HARNESS):
    """The run's plan with other settings."""
    spec = six.plan.spec
    spec = replace(spec, accumulation_steps=micro_steps, ddp=replace(spec.ddp, comm_hook=hook))
    return replace(six.plan, spec=spec, source=source)


@pytest.mark.parametrize(("hook", "sent"), [("none", 1.0), ("bf16", 0.5), ("fp16", 0.5)])
def test_reductions_are_counted_whatever_a_hook_makes_of_the_bytes(six, hook, sent):
    records = records_of(six, sent=sent)
    assert records.reductions(trained(six, micro_steps=2, hook=hook)) == 2
    assert records.reductions(trained(six, micro_steps=1, hook=hook)) == 1  # one micro-step reduces once


def test_power_sgd_sends_up_to_three_messages_a_bucket_and_reduction(six):
    records = records_of(six, sent=0.01)
    assert records.reductions(trained(six, micro_steps=2, hook="powersgd")) == 1


def test_an_own_loops_reductions_are_its_all_reduces_over_its_buckets(six):
    own = trained(six, micro_steps=2, source=OWN_LOOP)
    assert [records_of(six, sent=sent).reductions(own) for sent in (1.0, 0.01)] == [2, 2]


def test_what_no_solo_block_recorded_is_unknown(six):
    nothing = replace(records_of(six, sent=1.0), gradients=())
    assert nothing.reductions(trained(six, micro_steps=2)) is None


def test_the_report_has_how_often_gradients_are_reduced(busy):
    assert busy.point(4).comm.reductions == 1


# Accumulation


def test_a_replay_of_other_bytes_is_scaled_to_the_steps_and_closes_nothing(measure, cluster):
    """An own loop's baseline replays each bucket once; the loop left no_sync out and reduces twice."""
    run = measure(cluster.Truth(world_sizes=(1, 4)))
    replay = pl.col("arm") == "replay"
    half = run.tables.buckets.with_columns(
        bytes=pl.when(replay).then(pl.col("bytes") // 2).otherwise(pl.col("bytes"))
    )
    found = run.analyze(replace(run.tables, buckets=half)).points[1]
    assert found.comm.curve_share.value == pytest.approx(2 * run.point(4).comm.curve_share.value)
    assert (run.point(4).closure is None, found.closure is None) == (False, True)


def test_a_bucket_is_ready_so_long_after_the_last_backward_began(measure, cluster):
    """Two micro-steps: the last bucket is ready at the end, half as long after its own backward's begin."""
    run = measure(cluster.Truth(world_sizes=(1, 4)))
    plan = replace(run.plan, spec=replace(run.plan.spec, accumulation_steps=2))
    once, twice = (
        found.points[1].comm.buckets[-1].ready_ms.value
        for found in (run.analysis, replace(run, plan=plan).analyze(run.tables))
    )
    assert twice == pytest.approx(once / 2, rel=0.02)


# The baseline of many ranks


def test_every_world_size_has_its_baseline_in_every_round(measure, cluster):
    """Sixteen ranks, of which a few run alone in a round: six rounds bear an interval at two ranks as well."""
    run = measure(cluster.Truth(world_sizes=(1, 2, 4, 8, 16), hosts=16, rounds=6))
    for n in (1, 2, 4, 8, 16):
        assert run.point(n).efficiency.n == 6
        assert run.point(n).efficiency.low is not None


@pytest.mark.slow
def test_ranks_whose_turn_comes_seldom_weigh_as_much_as_others(measure, cluster):
    slow = tuple(cluster.Straggler(rank=r, extra_ns=20e6, alone=True) for r in range(8, 16))
    truth = cluster.Truth(world_sizes=(1, 2, 4, 8, 16), hosts=16, rounds=8, stragglers=slow).without_noise()
    run = measure(truth)
    alone_ms = (
        truth.input_ns + truth.forward_ns + truth.backward_ns + truth.optimizer_ns + truth.host_ns
    ) / 1e6
    assert run.point(8).arms_ms.bare_one.value == pytest.approx(alone_ms)
    records = run.records.trial(16)
    step_ms = records.arm("bare_one")["step"].mean() / 1e6
    assert step_ms == pytest.approx(alone_ms + 10.0)


@pytest.mark.parametrize("seed", range(4))
def test_the_link_costs_no_more_than_what_its_steps_wait(measure, cluster, seed):
    """Replays leave out a block's first step. So does what they are held against, or one slow step counts twice."""
    truth = cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=4, steps=2, link_noise=1.5, seed=seed)
    found = measure(truth).point(2)
    parts, loss = found.parts_ms, found.loss
    waits = (parts.exposed_transfer.value + parts.exposed_skew.value) / found.arms_ms.probe.value
    assert loss.link_latency.value + loss.link_bandwidth.value <= waits + 0.03
