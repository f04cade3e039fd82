"""From a waterfall to causes and remedies."""

from dataclasses import fields, replace

import pytest
from support.results import bucket, comm

from scaling.analysis.results import (
    ArmTimes,
    Degrees,
    DeviceClocks,
    FabricLevel,
    Loss,
    Measured,
    Overhead,
    Point,
    StepParts,
    Straggler,
    TokenBalance,
)
from scaling.analysis.verdicts.evidence import evidence_of
from scaling.analysis.verdicts.host_remedies import Host
from scaling.analysis.verdicts.verdict import verdicts
from scaling.settings.plan import DETAILS, OWN_LOOP, Content


def about(value, half=0.005):
    return Measured(value, value - half, value + half, 8)


UNEVEN = TokenBalance(
    per_step=about(850.0),
    most_over_mean=about(1.25),
    rank=2,
    rank_extra=about(90.0, 20.0),
    per_token_us=about(20.0, 0.4),
    saves_ms=about(12.0, 1.0),
)


SWEEP = FabricLevel(
    name="network", world_size=4, alpha_us=Measured(200.0), busbw_gbit_s=None, nominal_gbit_s=None, curve=()
)


def with_spec(plan, **changes):
    return replace(plan, spec=replace(plan.spec, **changes))


def point(loss, *, efficiency=None, **more):
    """Four ranks; the step is 100 ms."""
    shares = {cause: x if isinstance(x, Measured | None) else about(x) for cause, x in loss.items()}
    lost = sum(x.value for x in shares.values() if x)
    return Point(
        world_size=4,
        hosts=4,
        status="done",
        step_ms=about(100.0),
        efficiency=efficiency or about(1 - lost),
        loss=Loss(**shares),
        **more,
    )


def causes(found):
    return [v.cause for v in found]


def test_causes_come_largest_first(plan):
    found = verdicts(point({"neighbours": 0.1, "link_bandwidth": 0.3, "overlap": 0.2}), plan)
    assert causes(found) == ["link_bandwidth", "overlap", "neighbours"]
    assert [v.share.value for v in found] == [0.3, 0.2, 0.1]
    assert {v.world_size for v in found} == {4}


def test_stamps_come_before_a_difference_between_arms_that_may_be_smaller(plan):
    def first(half):
        lost = {"overlap": about(0.154, half), "link_latency": about(0.151, 0.08)}
        return causes(verdicts(point(lost), plan))[0]

    assert (first(0.04), first(0.002)) == ("link_latency", "overlap")


def test_a_small_cause_is_not_worth_a_verdict(plan):
    assert causes(verdicts(point({"neighbours": 0.029, "overlap": 0.2}), plan)) == ["overlap"]


def test_a_cause_that_may_be_nothing_is_none(plan):
    assert causes(verdicts(point({"neighbours": about(0.05, 0.06), "overlap": 0.2}), plan)) == ["overlap"]


def test_arms_that_differ_no_more_than_equal_ones_do_are_no_cause(plan):
    floor = Overhead(aa_floor=about(0.98, 0.04))  # equal blocks came out up to 6 % apart
    lost = {"overlap": 0.05, "neighbours": 0.07, "link_bandwidth": 0.05}
    assert causes(verdicts(point(lost, overhead=floor), plan)) == ["neighbours", "link_bandwidth"]


def test_confidence_is_high_where_even_the_low_end_is_notable(plan):
    found = verdicts(point({"overlap": about(0.2, 0.06), "neighbours": about(0.05, 0.03)}), plan)
    assert [v.confidence for v in found] == ["high", "medium"]


def test_a_difference_between_arms_is_no_cause_where_nothing_may_be_lost(plan):
    lost = {"overlap": 0.2, "link_bandwidth": 0.1}
    found = verdicts(point(lost, efficiency=about(0.8, 0.25)), plan)
    assert causes(found) == ["link_bandwidth"]


def test_a_cause_is_no_surer_than_the_efficiency_and_what_is_unexplained(plan):
    assert verdicts(point({"overlap": 0.2}), plan)[0].confidence == "high"
    assert verdicts(point({"overlap": 0.2}, efficiency=about(0.7, 0.15)), plan)[0].confidence == "medium"
    assert (
        verdicts(point({"overlap": 0.2, "unexplained": -0.25}, efficiency=about(0.7)), plan)[0].confidence
        == "medium"
    )


def test_equal_arms_that_come_out_as_far_apart_make_a_difference_no_cause(plan):
    apart = Overhead(equal_arms_apart=Measured(0.15, n=12))
    found = verdicts(point({"overlap": 0.2, "neighbours": 0.14}, overhead=apart), plan)
    assert [(v.cause, v.confidence) for v in found] == [("overlap", "medium")]


def test_what_is_unexplained_is_no_cause(plan):
    assert causes(verdicts(point({"unexplained": 0.3}), plan)) == ["undecided"]


def test_little_lost_scales_well(plan):
    (found,) = verdicts(point({"neighbours": 0.02}), plan)
    assert found.cause == "scales_well"
    assert found.share is None
    assert "97.5%" in found.evidence[0]


@pytest.mark.parametrize("efficiency", [about(0.7), about(0.91, 0.03), Measured(0.95)])
def test_nothing_that_stands_out_is_undecided(plan, efficiency):
    (found,) = verdicts(point({"unexplained": 0.02}, efficiency=efficiency), plan)
    assert (found.cause, found.share, found.try_) == ("undecided", None, ())
    assert "measure longer (measure" in found.evidence[0]


def test_beside_a_larger_term_that_is_not_certain_a_cause_is_a_hint(plan):
    nobody_late = point({"straggler": 0.20, "link_bandwidth": 0.07})
    (found,) = verdicts(nobody_late, plan)
    assert (found.cause, found.confidence) == ("link_bandwidth", "low")
    assert found.evidence[-1] == "the largest term, which is not certain, is straggler: 20% of the step"


@pytest.mark.parametrize(("cost_ms", "named"), [(2.5, []), (12.0, [("straggler", 0.12)])])
def test_a_straggler_saves_what_that_rank_costs_and_not_what_all_cost_by_turns(plan, cost_ms, named):
    late = Straggler(rank=2, phase="forward", by_itself=None, cost_ms=about(cost_ms), skew_ms=about(28.0))
    told = verdicts(point({"straggler": 0.25}, straggler=late), plan)
    assert [(v.cause, v.share.value) for v in told if v.share] == [(c, pytest.approx(s)) for c, s in named]
    if named:
        assert told[0].confidence == "low"
        assert (
            told[0].evidence[-1]
            == "the largest term, which is not certain, is ranks late by turns: 13% of the step"
        )


def test_compute_beside_communication_is_a_hint_where_a_baseline_s_batch_stands_for_all(plan):
    (told,) = verdicts(point({"overlap": 0.2}), replace(plan, source=OWN_LOOP))
    assert (told.cause, told.confidence) == ("overlap", "low")
    assert "on one batch for all" in told.evidence[-1]


def test_the_largest_term_is_named_where_nothing_is_proven(plan):
    """Two rounds: no interval."""
    found = verdicts(point({"neighbours": Measured(0.30), "link_bandwidth": Measured(0.04)}), plan)
    assert found[-1].evidence[1] == "the largest term, which is not certain, is neighbours: 30% of the step"


@pytest.mark.parametrize(
    ("left_out", "known"),
    [((), {}), ((DETAILS,), {"host": 0.001, "input": 0.0})],
    ids=["no arm", "every step tells host and input"],
)
def test_where_no_arm_tells_causes_apart_it_says_so(plan, left_out, known):
    measured = replace(plan, content=Content(without=left_out))
    (found,) = verdicts(point({"unexplained": 0.99, **known}), measured)
    assert found.cause == "undecided"
    assert found.evidence == (
        "the time held nothing that tells causes apart; measure longer (measure.budget_s=7200)",
    )


def test_without_a_waterfall_it_is_undecided(plan):
    bare = replace(point({}), loss=None, efficiency=about(0.5))
    assert causes(verdicts(bare, plan)) == ["undecided"]


def test_one_rank_and_a_trial_that_was_not_measured_have_no_verdict(plan):
    assert verdicts(Point(world_size=1, hosts=1, status="done", efficiency=about(1.0)), plan) == ()
    assert verdicts(Point(world_size=4, hosts=4, status="failed"), plan) == ()


def test_a_straggler_is_named_with_its_evidence(plan):
    late = Straggler(rank=2, phase="input", by_itself=False, cost_ms=about(30.0), skew_ms=about(28.0))
    (found,) = verdicts(point({"straggler": 0.3}, straggler=late), plan)
    text = "; ".join(found.evidence)
    assert found.cause == "straggler"
    assert "rank 2 is late, mostly in input: the others wait 28.0 ms a step longer" in text
    assert "mostly in input" in text
    assert "costs 30.0 ms" in text
    assert "alone it is as fast" in text
    by_itself = point({"straggler": 0.3}, straggler=replace(late, by_itself=True))
    assert "it is slow when it runs alone, too" in "; ".join(verdicts(by_itself, plan)[0].evidence)


def test_without_a_late_rank_there_is_no_straggler(plan):
    assert causes(verdicts(point({"straggler": 0.1}), plan)) == ["undecided"]


def test_more_than_the_link_can_carry_has_its_reason_beside_it(plan):
    carried = comm(268 * 2**10, busbw_gbit_s=about(0.0524), nominal_share=about(1.1, 0.03))
    (found,) = verdicts(point({"link_bandwidth": 0.3}, comm=carried), plan)
    assert "110% of what the link can carry: a shaped link passes a burst at once" in found.evidence[-1]


def test_where_no_sizes_were_swept_several_buckets_may_wait_for_latency(plan):
    several = comm(2**20, buckets=(bucket(2**19),) * 2)
    (found,) = verdicts(point({"link_bandwidth": 0.3}, comm=several), plan)
    assert "what of the wait is latency is not known" in found.evidence[-1]
    assert "ddp.bucket_cap_mb=100" in [remedy.overrides for remedy in found.try_]
    (split, _) = verdicts(point({"link_bandwidth": 0.3, "link_latency": 0.05}, comm=several), plan)
    assert "latency is not known" not in str(split.evidence)
    assert "ddp.bucket_cap_mb=100" not in [remedy.overrides for remedy in split.try_]


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (100.5, "a step waits 20.0 of 100.0 ms for data on the link"),
        (60.0, "a step with phase stamps waits 20.0 of 60.0 ms for data on the link"),
    ],
)
def test_a_wait_is_a_part_of_the_step_that_it_was_seen_in(plan, probe, said):
    """On a busy machine steps with and without phase stamps differ; the share of the loss is of the former."""
    seen = point(
        {"link_bandwidth": 0.3},
        comm=comm(9 * 2**20, buckets=()),
        arms_ms=ArmTimes(probe=about(probe)),
        overhead=Overhead(probe_over_plain=about(probe / 100)),
        parts_ms=StepParts(exposed_transfer=about(20.0)),
    )
    (found,) = verdicts(seen, plan)
    assert found.evidence[0] == said


def test_evidence_has_numbers_and_units(plan):
    full = point(
        dict.fromkeys(
            ("small_batch", "neighbours", "strategy_overhead", "link_bandwidth", "input", "host"), 0.1
        ),
        comm=comm(9 * 2**20, busbw_gbit_s=about(0.185), nominal_share=about(0.97)),
        arms_ms=ArmTimes(bare_one=about(50.0), bare_all=about(60.0), ddp_solo=about(65.0)),
        parts_ms=StepParts(exposed_transfer=about(20.0), input=about(7.0), host=about(8.0)),
    )
    said = {v.cause: "; ".join(v.evidence) for v in verdicts(full, plan)}
    assert "20.0 of 100.0 ms" in said["link_bandwidth"]
    assert "9 MiB a step at 0.185 Gbit/s, 97% of what the link can carry" in said["link_bandwidth"]
    assert "60.0 ms while the other ranks run, and 50.0 ms alone" in said["neighbours"]
    assert "DDP over one rank takes 65.0 ms" in said["strategy_overhead"]
    assert "50.0 ms" in said["small_batch"]
    assert "7.0 ms" in said["input"]
    assert "8.0 ms" in said["host"]
    sharded = replace(full, parallel=Degrees(strategy="fsdp_tp", shard=2))
    assert any(
        "FSDP over one rank takes 65.0 ms" in line for line in evidence_of("strategy_overhead", sharded)
    )


def test_unequal_tokens_are_named_with_what_evening_them_out_would_gain(plan):
    (found,) = verdicts(point({"imbalance": 0.2}, tokens=UNEVEN), plan)
    assert (found.cause, found.confidence) == ("imbalance", "high")
    assert found.evidence[0].startswith(
        "the ranks' lateness follows their tokens: 20 us a token; balancing them would save 12.0 ±1.0 of "
    )
    assert found.evidence[2] == "rank 2 has most over all steps, 90 more than the mean rank"
    bucketed, filled = found.try_
    assert (bucketed.overrides, filled.overrides) == ("", "")
    assert bucketed.predicted_gain.value == pytest.approx(1 / 0.8)


@pytest.mark.parametrize(
    ("per_token", "rank", "confidence"),
    [
        (None, 2, "low"),  # it always has as many more
        (about(100.0, 300.0), 2, "low"),  # 90 tokens may take 36 ms
        (about(0.0, 50.0), 2, "high"),  # or 4.5 ms at most
        (about(20.0, 1.0), 2, "high"),  # the straggler is what these leave
        (None, 1, "high"),  # another rank has more
    ],
)
def test_a_late_rank_that_may_only_have_more_to_do_is_undecided(plan, per_token, rank, confidence):
    late = Straggler(rank=2, phase="forward", by_itself=None, cost_ms=about(30.0), skew_ms=about(28.0))
    tokens = replace(UNEVEN, per_token_us=per_token, rank=rank)
    (found,) = verdicts(point({"straggler": 0.3}, straggler=late, tokens=tokens), plan)
    assert (found.cause, found.confidence) == ("straggler", confidence)
    assert ("undecided whether it is slow" in found.evidence[-1]) == (confidence == "low")


def test_every_cause_has_evidence_of_its_own(plan):
    late = Straggler(rank=2, phase="input", by_itself=False, cost_ms=about(30.0), skew_ms=about(28.0))
    clocks = DeviceClocks(alone_mhz=about(1900.0), together_mhz=about(1700.0))
    full = point(
        {field.name: 0.05 for field in fields(Loss) if field.name not in ("unexplained", "communication")},
        comm=reduced(1),
        straggler=late,
        tokens=UNEVEN,
        clocks=clocks,
        arms_ms=ArmTimes(bare_one=about(50.0), bare_all=about(60.0), ddp_solo=about(65.0)),
        parts_ms=StepParts(exposed_transfer=about(20.0), input=about(7.0), host=about(8.0)),
    )
    said = {v.cause: v.evidence for v in verdicts(full, plan, SWEEP)}
    assert len(said) == len(fields(Loss)) - len(("unexplained", "slower_compute", "communication"))
    lines = [line for evidence in said.values() for line in evidence]
    assert len(lines) == len(set(lines))
    assert all(said.values())
    assert said["link_latency"] == (
        "a step sends 1 message of 1024 KiB on average, whose fixed costs are 5.0 ms of it",
        "a message takes 1200 us however small it is: 6 hops of 200 us each in the size sweep",
    )


# What to try


def test_a_short_hop_takes_more_than_nothing(plan):
    (found,) = verdicts(point({"link_latency": 0.3}), plan, replace(SWEEP, alpha_us=about(0.4999)))
    assert "6 hops of 0.5 us each" in found.evidence[-1]


@pytest.mark.parametrize("cause", ["link_bandwidth", "link_latency", "small_batch"])
@pytest.mark.parametrize("gain", [about(0.78), about(0.99, 0.03), Measured(0.9)])
def test_what_is_not_sure_to_help_is_not_offered(plan, cause, gain):
    (found,) = verdicts(point({cause: 0.3}), plan, gain=lambda _change: gain)
    assert found.try_ == ()
    assert found.evidence[-1].startswith("nothing here would help: the best that was simulated, ")
    assert f"change the throughput by {gain.value - 1:+.0%}" in found.evidence[-1]
    assert "; it would take " in found.evidence[-1]


def test_what_helps_is_offered_beside_what_does_not(plan):
    def gain(change):
        return about(1.2) if change.compression > 1 else about(0.94)

    (found,) = verdicts(point({"link_bandwidth": 0.3}), plan, gain=gain)
    assert [r.overrides for r in found.try_] == ["ddp.comm_hook=bf16"]
    assert not [line for line in found.evidence if "nothing here" in line]


def test_what_too_few_rounds_predict_is_offered_without_a_gain(plan):
    (found,) = verdicts(point({"link_bandwidth": 0.3}), plan, gain=lambda _change: Measured(1.2))
    assert {r.predicted_gain for r in found.try_} == {None}


def test_what_cannot_be_simulated_is_offered_without_a_gain(plan):
    (found,) = verdicts(point({"neighbours": 0.3}), plan, gain=lambda _change: about(0.5))
    assert [r.predicted_gain for r in found.try_] == [None]


def overrides(cause, plan):
    (found,) = verdicts(point({cause: 0.3}), plan)
    return [r.overrides for r in found.try_]


def test_a_slow_link_asks_for_fewer_reductions(plan):
    assert overrides("link_bandwidth", plan)[0] == "accumulation_steps=2 batch_per_rank=64"
    deeper = with_spec(plan, accumulation_steps=4)
    assert overrides("link_bandwidth", deeper)[0] == "accumulation_steps=8 batch_per_rank=64"


def test_a_slow_link_asks_for_fewer_bytes_unless_a_hook_sees_to_that(plan):
    assert overrides("link_bandwidth", plan)[1:] == ["ddp.comm_hook=bf16"]
    hooked = with_spec(plan, ddp=replace(plan.spec.ddp, comm_hook="powersgd"))
    assert overrides("link_bandwidth", hooked)[1:] == []


def test_in_strong_scaling_it_is_the_global_batch_that_grows(plan):
    strong = with_spec(plan, mode="strong", global_batch=128)
    tried = overrides("link_bandwidth", strong)[0]
    assert "global_batch=256" in tried
    assert "batch_per_rank" not in tried  # only read in weak scaling


def test_latency_asks_for_larger_buckets(plan):
    assert overrides("link_latency", plan) == [
        "ddp.bucket_cap_mb=100",
        "accumulation_steps=2 batch_per_rank=64",
    ]


def test_ddps_own_cost_asks_for_what_is_switched_wrong(plan):
    def ddp(**changes):
        return with_spec(plan, ddp=replace(plan.spec.ddp, **changes))

    assert overrides("strategy_overhead", ddp(find_unused_parameters=True)) == [
        "ddp.find_unused_parameters=false"
    ]
    assert overrides("strategy_overhead", ddp(gradient_as_bucket_view=False)) == [
        "ddp.gradient_as_bucket_view=true"
    ]
    assert overrides("strategy_overhead", plan) == []


def test_a_remedy_says_the_line_of_ones_own_code(plan):
    for cause in ("link_bandwidth", "link_latency"):
        (found,) = verdicts(point({cause: 0.3}), plan)
        assert all(r.code for r in found.try_)


def reduced(times, size=2**20, sent=2**20):
    """Gradients of `size` bytes, of which `sent` are sent in a step of two reductions or one."""
    return comm(sent, gradient_bytes=size, reductions=times)


@pytest.mark.parametrize("sent", [2**21, 2**20], ids=["as they are", "as bf16"])
def test_gradients_reduced_in_every_micro_step_lack_no_sync(plan, sent):
    (found,) = verdicts(point({"link_bandwidth": 0.3}, comm=reduced(2, sent=sent)), plan)
    assert "gradients of 1 MiB are reduced 2 times a step: no_sync is missing" in found.evidence
    assert [r.code.startswith("with ddp.no_sync():") for r in found.try_] == [True]


@pytest.mark.parametrize("times", [1, None])
def test_gradients_reduced_once_do_not(plan, times):
    (found,) = verdicts(point({"link_bandwidth": 0.3}, comm=reduced(times)), plan)
    assert not [line for line in found.evidence if "no_sync" in line]
    assert found.try_[0].overrides.startswith("accumulation_steps=2")


def test_a_host_whose_ranks_are_all_late_is_named(plan):
    late = Straggler(rank=9, phase="input", by_itself=None, cost_ms=about(30.0), skew_ms=about(28.0), host=1)
    (found,) = verdicts(point({"straggler": 0.3}, straggler=late), plan)
    assert "all ranks of host 1 are late: look at what they share" in found.evidence


@pytest.mark.parametrize(("mode", "whole"), [("weak", "model"), ("strong", "batch")])
def test_over_several_ranks_no_cause_is_told_and_a_longer_run_would_not_help(plan, mode, whole):
    over_two = replace(point({}), loss=None, efficiency=about(0.5), base_world_size=2)
    (found,) = verdicts(over_two, with_spec(plan, mode=mode))
    assert found.cause == "undecided"
    assert f"no rank ran the whole {whole} alone" in found.evidence[0]
    assert not [line for line in found.evidence if "measure=" in line]


HOST = Host(cores=8, numa_nodes=1)


def tried(found, cause):
    return [r for v in found if v.cause == cause for r in v.try_]


@pytest.mark.parametrize(
    ("threads", "host", "overrides", "numactl"),
    [
        (1, HOST, [], False),  # each rank has cores of its own, and there is one node
        (4, HOST, ["threads=2"], False),
        (1, Host(cores=8, numa_nodes=2), [], True),
        (1, Host(), [""], True),  # nothing is known of the host
    ],
)
def test_neighbours_are_advised_what_can_change(plan, threads, host, overrides, numactl):
    topology = replace(plan.spec.topology, hosts=1, ranks_per_host=4)
    plan = with_spec(plan, topology=topology, threads=threads)
    found = verdicts(point({"neighbours": 0.3}), plan, host=host)
    codes = [r.code for r in tried(found, "neighbours")]
    threaded = [r.overrides for r in tried(found, "neighbours") if "set_num_threads" in r.code]
    assert threaded == overrides
    assert any("numactl" in code for code in codes) == numactl
    said = any("it would take fewer ranks on a host" in line for line in found[0].evidence)
    assert said == (not codes)


def test_a_wait_for_input_has_workers_to_try_and_says_what_the_gain_assumes(plan):
    waits = {"input": about(0.25)}
    found = verdicts(
        point(waits, parts_ms=StepParts(input=about(25.0))), plan, host=Host(cores=8, numa_nodes=1)
    )
    (remedy,) = tried(found, "input")
    assert "num_workers=1, persistent_workers=True" in remedy.code  # 1.25 x 25 of the other 75 ms
    assert remedy.predicted_gain.value == pytest.approx(1 / 0.75)
    assert remedy.assumes == "if every batch is ready when its step begins"
    loop = verdicts(point(waits, parts_ms=StepParts(input=about(25.0))), replace(plan, source=OWN_LOOP))
    assert "a step spends 25 of 100 ms before its forward" in tried(loop, "input")[0].code
    assert tried(loop, "input")[0].assumes.endswith("and nothing else runs before the forward")
    on_device = with_spec(plan, topology=replace(plan.spec.topology, device="cuda"))
    found = verdicts(point(waits, parts_ms=StepParts(input=about(25.0))), on_device, host=HOST)
    assert "pin_memory=True" in tried(found, "input")[1].code
    few = verdicts(
        point(waits, parts_ms=StepParts(input=about(25.0))), plan, host=Host(cores=1, numa_nodes=1)
    )
    assert [("num_workers=1" in r.code, "make samples cheaper" in r.code) for r in tried(few, "input")] == [
        (True, False),
        (False, True),
    ]


def test_a_large_optimizer_is_named_last_with_what_makes_it_lighter(plan):
    fast = replace(reduced(1), busbw_gbit_s=about(1000.0, 1.0))
    slow = replace(fast, busbw_gbit_s=about(0.001, 0.0001))
    parts = StepParts(optimizer=about(30.0))
    found = verdicts(point({"link_bandwidth": 0.3}, parts_ms=parts, comm=fast), plan)
    assert causes(found) == ["link_bandwidth", "optimizer"]
    codes = [r.code for r in found[-1].try_]
    assert "fused=True" in codes[0]
    assert "ZeroRedundancyOptimizer" in codes[1]
    assert found[-1].try_[1].predicted_gain.value == pytest.approx(100 / (100 - 22.5), rel=0.01)
    over_slow = verdicts(point({"link_bandwidth": 0.3}, parts_ms=parts, comm=slow), plan)
    assert not any("ZeroRedundancy" in r.code for r in tried(over_slow, "optimizer"))
    small = verdicts(point({"link_bandwidth": 0.3}, parts_ms=StepParts(optimizer=about(9.0))), plan)
    assert causes(small) == ["link_bandwidth"]
    late = Straggler(rank=2, phase="optimizer", by_itself=False, cost_ms=about(25.0), skew_ms=about(25.0))
    mixed = verdicts(point({"straggler": 0.25}, parts_ms=parts, straggler=late), plan)
    assert causes(mixed) == ["straggler"]  # the optimizer's mean has what rank 2 is late by


def test_each_remedy_stands_once_and_says_that_it_takes_fewer_optimizer_steps(plan):
    found = verdicts(
        point({"link_bandwidth": 0.3, "link_latency": 0.2}), plan, gain=lambda _change: about(1.2)
    )
    offered = [r.overrides for v in found for r in v.try_]
    assert len(offered) == len(set(offered))
    (less_often,) = [r for v in found for r in v.try_ if "accumulation_steps" in r.overrides]
    assert less_often.assumes == "half as many optimizer steps for the same samples; check the loss"
    assert "what to try for link bandwidth helps here too" in found[1].evidence


def test_what_divided_layers_compute_beyond_their_part_is_said(plan):
    """One rank alone takes 100 ms, two that divide the layers 62 each: 12 ms of that are the strategy's."""
    lost = point(
        {"strategy_overhead": 0.17},
        arms_ms=ArmTimes(bare_one=about(100.0), bare_all=about(100.0), ddp_solo=about(100.0)),
        parts_ms=StepParts(
            input=about(1.0), forward=about(20.0), backward=about(38.0), optimizer=about(2.0), host=about(1.0)
        ),
        parallel=Degrees(strategy="tp", tensor=2),
    )
    said = " ".join(evidence_of("strategy_overhead", lost))
    assert "without its waits a rank takes 62.0 ms a step" in said
    assert "would take 50.0 ms each" in said


def test_tokens_whose_squares_take_time_are_weighed_by_it(plan):
    squared = replace(UNEVEN, per_square_us=about(0.1, 0.01))
    (found,) = verdicts(point({"imbalance": 0.2}, tokens=squared), plan)
    assert "20 us a token and 0.1 us a squared one" in found.evidence[0]
    assert found.evidence[1].startswith(
        "by the time that they take, the rank with most in a step has 25% more"
    )
