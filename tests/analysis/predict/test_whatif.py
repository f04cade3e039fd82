"""Predictions from a simulated cluster, against the same cluster simulated as predicted."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.network.curve import Hops
from scaling.analysis.predict.change import Change
from scaling.analysis.predict.predictions import FIXED_SHARE, named_leans, predict
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.predict.whatif import outcome
from scaling.analysis.results import Point
from scaling.analysis.verdicts.remedies import offers
from scaling.settings.plan import make_plan
from scaling.settings.run import WhatIf

MS = 1e6
NEAR = 0.01
"""The model is exact on these clusters but for what they do at random."""


@pytest.fixture(scope="module")
def truth(cluster):
    """Enough link that part of it is exposed, little noise."""
    return cluster.Truth(
        world_sizes=(1, 2, 4), block_noise=0.002, step_noise=0.0, link_noise=0.002, drift=0.0
    )


@pytest.fixture(scope="module")
def sources(measure, truth):
    run = measure(truth)
    return {source.world_size: source for source in read_sources(run.records)}


@pytest.fixture(scope="module")
def expected(cluster):
    def step_ns(truth, world_size, batch=None):
        found = cluster.expect(
            truth, cluster.Trial(world_size=world_size, hosts=world_size, batch=batch or truth.batch)
        )
        return found.step_ns["plain"]

    return step_ns


def times_as_fast(source, factor):
    return (Hops(name="network", ranks=None, alpha=source.link.alpha, beta_ns=source.link.beta_ns / factor),)


def test_with_nothing_changed_it_is_the_measured_step(sources, measure, truth):
    for source in sources.values():
        found = predict(source, Change())
        assert found["step"].value == source.plain[0]
        assert found["gain"].value == 1
        assert found["gain"].half_width < 1e-9


def test_so_are_its_losses(sources, measure, truth):
    run = measure(truth)
    for n, source in sources.items():
        found, known = predict(source, Change()), run.point(n).loss
        for cause in (
            "neighbours",
            "strategy_overhead",
            "link_latency",
            "link_bandwidth",
            "overlap",
            "input",
        ):
            assert found[cause].value == pytest.approx(getattr(known, cause).value, abs=0.01), cause


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("world_size", [2, 4])
def test_another_links_step(sources, truth, expected, factor, world_size):
    target = dataclasses.replace(truth, beta_ns=truth.beta_ns / factor)
    source = sources[world_size]
    found = predict(source, Change(fabric=times_as_fast(source, factor)))["step"]
    assert found.value == pytest.approx(expected(target, world_size), rel=2 * NEAR)
    assert found.low < expected(target, world_size) < found.high


@pytest.mark.parametrize(("start", "end"), [(2, 4), (4, 2), (4, 8), (2, 1)])
def test_another_world_sizes_step(sources, truth, expected, cluster, start, end):
    target = dataclasses.replace(truth, world_sizes=(1, 2, 4, 8), hosts=8)
    found = predict(sources[start], Change(world_size=end))["step"].value
    assert found == pytest.approx(expected(target, end), rel=NEAR)


def test_one_bucket_instead_of_three(sources, truth, expected, cluster):
    merged = cluster.Bucket(bytes=truth.payload, at=1.0)
    target = dataclasses.replace(truth, buckets=(merged,))
    found = predict(sources[4], Change(bucket_cap_mb=100))["step"].value
    assert found == pytest.approx(expected(target, 4), rel=NEAR)


def test_a_target_of_twice_the_compute(sources, truth, expected):
    half = {
        name: getattr(truth, name) / 2 for name in ("forward_ns", "backward_ns", "optimizer_ns", "ddp_ns")
    }
    found = predict(sources[4], Change(compute_scale=2.0))["step"].value
    assert found == pytest.approx(expected(dataclasses.replace(truth, **half), 4), rel=NEAR)


def test_half_the_bytes_move_in_half_the_time(sources, truth, expected):
    source = sources[4]
    sent = predict(source, Change(compression=2.0))["step"].value
    moved = predict(source, Change(fabric=times_as_fast(source, 2)))["step"].value
    assert sent == pytest.approx(moved, rel=0.02)  # but for latency, which goes by the size


def test_without_its_late_rank(measure, cluster, truth, expected):
    late = dataclasses.replace(truth, stragglers=(cluster.Straggler(rank=1, extra_ns=30 * MS),))
    run = measure(late)
    source = next(s for s in read_sources(run.records) if s.world_size == 4)
    assert source.late == (1,)
    found = predict(source, Change(without_straggler=True))
    assert found["step"].value == pytest.approx(expected(truth, 4), rel=NEAR)
    assert found["straggler"].value == 0
    assert predict(source, Change())["straggler"].value == pytest.approx(30 * MS / source.plain[0], rel=0.03)


def test_twice_the_batch_shares_out_what_a_step_costs_once(sources):
    found = outcome(sources[4], Change(batch=64))
    assert 1 < found["gain"][0] < 2
    assert found["efficiency"][0] > outcome(sources[4], Change())["efficiency"][0]


def test_reducing_every_other_time_hides_nothing_of_the_first_half(sources):
    """Two micro-steps of half the batch: the same compute and bytes, less of it beside each other."""
    once, twice = (outcome(sources[4], Change(accumulation=a))["step"][0] for a in (1, 2))
    assert twice > once


@pytest.mark.parametrize("phase", ["forward", "host"])
def test_a_rank_that_is_slow_by_itself_is_no_part_of_the_baseline_here_either(measure, cluster, truth, phase):
    late = cluster.Straggler(rank=1, extra_ns=25 * MS, phase=phase, alone=True)
    run = measure(dataclasses.replace(truth, world_sizes=(2, 4), stragglers=(late,)))
    for source in read_sources(run.records):
        found, point = predict(source, Change()), run.point(source.world_size)
        assert found["efficiency"].value == pytest.approx(point.efficiency.value, rel=0.01)
        assert found["neighbours"].value == pytest.approx(point.loss.neighbours.value, abs=0.01)


@pytest.mark.parametrize("times", [0.5, 2.0, 4.0])
def test_strong_scaling_of_another_whole_batch(measure, cluster, truth, times):
    """What a batch costs whatever its size is so much less of the whole one."""
    strong = dataclasses.replace(truth, mode="strong", batch=64, input_ns=1.0)
    grown = strong.fixed_share + (1 - strong.fixed_share) * times
    target = dataclasses.replace(
        strong,
        forward_ns=strong.forward_ns * grown,
        backward_ns=strong.backward_ns * grown,
        fixed_share=strong.fixed_share / grown,
    )
    run = measure(strong)
    for source in read_sources(run.records):
        n = source.world_size
        found = outcome(source, Change(batch=round(source.batch * times), whole_batch=times))
        known = cluster.expect(target, cluster.Trial(world_size=n, hosts=n, batch=64 // n))
        assert found["efficiency"][0] == pytest.approx(known.efficiency, rel=2 * NEAR)
        assert found["small_batch"][0] == pytest.approx(known.loss["small_batch"], abs=0.01)


def test_losses_add_up_to_what_efficiency_lacks(sources):
    found = outcome(sources[4], Change(world_size=8, bucket_cap_mb=2, compute_scale=3.0))
    causes = [value for name, value in found.items() if name not in ("step", "efficiency", "gain")]
    assert np.sum([c[0] for c in causes]) == pytest.approx(1 - found["efficiency"][0])


def test_what_is_far_from_the_measured_is_known_worse(sources):
    near = predict(sources[4], Change(world_size=8))["step"]
    far = predict(sources[4], Change(world_size=8, batch=16))["step"]
    assert far.half_width / far.value > near.half_width / near.value
    assert near.half_width > 0


def test_strong_scaling_knows_its_batches(measure, cluster, expected):
    truth = cluster.Truth(
        mode="strong", batch=64, block_noise=0.002, step_noise=0.0, link_noise=0.002, drift=0.0
    )
    run = measure(truth)
    source = next(s for s in read_sources(run.records) if s.world_size == 2)
    assert source.fixed_share == pytest.approx(0.2 / (0.2 + 0.8 / 2), rel=0.05)
    found = predict(source, Change(world_size=4, batch=16))
    target = cluster.expect(truth, cluster.Trial(world_size=4, hosts=4, batch=16))
    assert found["step"].value == pytest.approx(target.step_ns["plain"], rel=2 * NEAR)
    assert found["efficiency"].value == pytest.approx(target.efficiency, rel=2 * NEAR)
    assert found["small_batch"].value == pytest.approx(target.loss["small_batch"], abs=0.01)


def test_rounds_without_half_of_the_batch_count_all_the_same(measure, truth):
    """Its turn goes round all ranks, so small world sizes have it in few rounds; predictions have every round."""
    run = measure(dataclasses.replace(truth, rounds=4))
    for source in read_sources(run.records):
        assert (source.units, source.groups) == (4, 1)
        assert source.fixed_share is not None
        # Two ranks have half of the batch in two rounds only: then what it tells is known as badly as it ever is.
        assert (source.fixed_doubt is None) == (source.world_size == 2)
        (fixed,) = (
            lean for _, lean in named_leans(source, Change(batch=8), other_launch=False) if lean.fixed_off
        )
        assert fixed.fixed_off == (FIXED_SHARE if source.world_size == 2 else source.fixed_doubt)
        step, point = predict(source, Change())["step"], run.point(source.world_size)
        assert step.low is not None
        assert step.n == point.step_ms.n


def test_a_loop_that_does_not_tell_its_batch(sources, cluster):
    """An own loop's may be an object of the user's; its step can be predicted, another batch cannot be asked for."""
    unknown = dataclasses.replace(sources[4], batch=0)
    for change in (Change(), Change(bucket_cap_mb=25), Change(world_size=1)):
        assert outcome(unknown, change)["gain"] == pytest.approx(outcome(sources[4], change)["gain"])
    spec = dataclasses.replace(cluster.spec_of(cluster.Truth()), batch_per_rank=0, global_batch=0)
    plan = make_plan(spec, run_id="", created="", version="")
    point = Point(world_size=4, hosts=4, status="done")
    assert [offer.change for offer in offers("link_latency", point, plan)][1:] == [None]


def test_in_strong_scaling_the_rank_with_most_samples_sets_the_step():
    asked = WhatIf(**{**dict.fromkeys(WhatIf.__dataclass_fields__), "global_batch": 256})
    assert [asked.batch_at(n, "strong") for n in (128, 129, 255, 256, 300)] == [2, 2, 2, 1, 1]


@pytest.mark.parametrize("batch", [8, 16, 64])
def test_half_of_the_batch_alone_tells_what_other_batches_do_not_spare(sources, truth, expected, batch):
    for n, source in sources.items():
        assert source.fixed_share == pytest.approx(truth.fixed_share, rel=0.05)
        assert 0 < source.fixed_doubt < 0.03
        found = predict(source, Change(batch=batch))["step"]
        assert found.value == pytest.approx(expected(truth, n, batch), rel=2 * NEAR)
        assert found.low < expected(truth, n, batch) < found.high


def test_without_half_a_batch_nothing_is_taken_to_be_fixed_and_the_doubt_is_large(cluster, measure, sources):
    odd = measure(dataclasses.replace(cluster.Truth(world_sizes=(1, 4)), batch=33))
    (source,) = read_sources(odd.records)
    assert source.fixed_share is None
    doubts = [predict(s, Change(batch=16))["step"].half_width for s in (source, sources[4])]
    assert doubts[0] > 2 * doubts[1]


def test_where_no_sync_was_left_out_putting_it_in_saves_the_earlier_reductions(sources):
    every = dataclasses.replace(sources[4], accumulation=2, reductions=2)
    assert outcome(every, Change())["step"][0] == pytest.approx(every.plain[0])
    once = outcome(every, Change(reductions=1))
    assert once["step"][0] < every.plain[0]
    assert once["gain"][0] > 1


def test_what_kernels_of_the_link_slow_down_goes_by_how_long_both_run(sources):
    """NCCL: a link twice as fast runs beside compute for less long, so compute is slowed down less."""
    source = dataclasses.replace(sources[4], kernels=True)
    fast = Change(fabric=times_as_fast(source, 8))
    assert outcome(source, fast)["overlap"][0] < outcome(sources[4], fast)["overlap"][0]


def test_within_one_launch_a_prediction_is_surer(sources):
    change = Change(bucket_cap_mb=2)
    inside, elsewhere = (predict(sources[4], change, other_launch=o)["gain"] for o in (False, True))
    assert inside.half_width < elsewhere.half_width


def test_a_model_that_missed_at_its_back_test_is_doubted_by_as_much(sources):
    found = predict(sources[4], Change(world_size=8), doubt=0.1)["step"]
    assert found.high > 1.1 * found.value


# Communication hooks


def hooked(run, hook="bf16"):
    """The run had fp32 gradients of twice the bytes that went over its wire."""
    solo = pl.col("arm") == "ddp_solo"
    twice = pl.when(solo).then(2 * pl.col("bytes")).otherwise(pl.col("bytes"))
    tables = dataclasses.replace(
        run.tables,
        buckets=run.tables.buckets.with_columns(bytes=twice),
        parameters=run.tables.parameters.with_columns(bytes=2 * pl.col("bytes")),
    )
    ddp = dataclasses.replace(run.plan.spec.ddp, comm_hook=hook)
    return tables, dataclasses.replace(run.plan, spec=dataclasses.replace(run.plan.spec, ddp=ddp))


def test_after_a_hook_other_buckets_send_as_few_bytes_as_the_measured_ones(measure, truth, expected, cluster):
    source = next(s for s in read_sources(RunRecords(*hooked(measure(truth)))) if s.world_size == 4)
    assert (source.wire, source.reductions) == (0.5, 1)
    assert predict(source, Change())["step"].value == source.plain[0]
    # Every parameter its own bucket, as measured.
    same = predict(source, Change(bucket_cap_mb=1.0))["step"].value
    assert same == pytest.approx(source.plain[0])
    one = dataclasses.replace(truth, buckets=(cluster.Bucket(bytes=truth.payload, at=1.0),))
    merged = predict(source, Change(bucket_cap_mb=100.0))["step"].value
    assert merged == pytest.approx(expected(one, 4), rel=NEAR)


def test_the_link_is_judged_by_the_bytes_that_a_replay_sent(measure, truth, sources):
    source = next(s for s in read_sources(RunRecords(*hooked(measure(truth)))) if s.world_size == 4)
    assert source.link.beta_ns[0] == pytest.approx(sources[4].link.beta_ns[0])


def test_a_replay_of_all_reductions_of_a_step_makes_no_link_slower(measure, truth, cluster):
    """Three buckets, reduced in both micro-steps: a replay sends all six messages, ddp_solo knows three."""
    again = [dataclasses.replace(bucket, at=1.0) for bucket in truth.buckets]
    run = measure(dataclasses.replace(truth, world_sizes=(4,), buckets=(*truth.buckets, *again)))
    once = (pl.col("arm") != "ddp_solo") | (pl.col("seq") < 3)
    tables = dataclasses.replace(run.tables, buckets=run.tables.buckets.filter(once))
    plan = dataclasses.replace(run.plan, spec=dataclasses.replace(run.plan.spec, accumulation_steps=2))
    (source,) = read_sources(RunRecords(tables, plan))
    assert (source.reductions, source.wire) == (2, 1.0)
    assert source.link.beta_ns[0] == pytest.approx(truth.beta_ns, rel=0.05)


def test_a_reduction_slows_compute_by_as_much_whatever_the_batch(measure, cluster, truth, expected):
    """Twice the batch has the same messages: an overlap that takes 20 % of the compute then takes 10 %."""
    slowed = dataclasses.replace(truth, overlap=1.2, ddp_ns=0.0, fixed_share=0.0)
    source = next(s for s in read_sources(measure(slowed).records) if s.world_size == 4)
    known = expected(dataclasses.replace(slowed, overlap=1.1), 4, 2 * truth.batch)
    found = predict(source, Change(batch=2 * truth.batch))["step"]
    assert found.value == pytest.approx(known, rel=2 * NEAR)
    assert found.low < known < found.high
