"""Which rounds have details: all of them as long as the files stay within the bound, then a sample known beforehand."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.cli.verbs.plan import describe
from scaling.records.paths import RunFolder
from scaling.settings.budget import Costs, fit_training
from scaling.settings.plan import DETAILS, REPLAYS, SWEEP, WHOLE, Content, make_plan
from scaling.settings.sample import (
    LEAST_DETAILED,
    Round,
    Traffic,
    chosen,
    detailed_rounds,
    details_line,
    host_bytes,
    share_bytes,
    spread,
)
from scaling.settings.schedule import BARE_ONE, PLAIN, PROBE, arms_of, round_blocks

GIB = 2**30
SIZES = tuple(2**k for k in range(13))  # 1 to 4,096


@pytest.fixture
def plan_of(cluster):
    """plan_of(hosts, of the measure): a plan of all world sizes of a cluster with 8 ranks a host."""

    def made(hosts=1, **measure):
        sizes = tuple(n for n in SIZES if n <= 8 * hosts)
        spec = cluster.spec_of(cluster.Truth(world_sizes=sizes, hosts=hosts, ranks_per_host=8))
        measure = {"rounds_min": 6, "rounds_max": 60, "steps": 10} | measure
        spec = replace(spec, measure=replace(spec.measure, **measure))
        return make_plan(spec, run_id="run", created="", version="")

    return made


def sampled(plan, calls, *, rounds_s=1e6, content=WHOLE):
    """The rounds with details where a step has so many collectives; a round takes 3 s, without details 1 s."""
    traffic = dict.fromkeys(SIZES, Traffic(calls=calls, swept=60, tensors=calls))
    found = chosen(
        plan,
        plan.trials,
        content,
        traffic,
        lambda of: 3.0 if of.has(DETAILS) else 1.0,
        steps=10,
        rounds_s=rounds_s,
    )
    return found.detailed


@pytest.mark.parametrize("hosts", [1, 8, 32])
@pytest.mark.parametrize("calls", [8, 100])
def test_tens_of_hosts_keep_the_details_of_all_rounds(plan_of, hosts, calls):
    assert sampled(plan_of(hosts), calls) is None


def test_512_hosts_keep_as_many_rounds_as_their_share_holds(plan_of):
    plan = plan_of(512)
    numbers = sampled(plan, calls=25)
    assert numbers is not None
    assert LEAST_DETAILED < len(numbers) < 60
    traffic = dict.fromkeys(SIZES, Traffic(calls=25, swept=60, tensors=25))
    sizes = {
        has: host_bytes(plan, plan.trials, WHOLE if has else WHOLE.without_details(), traffic, 10)
        for has in (True, False)
    }
    took = sum(sizes[number in numbers] for number in range(60))
    assert 0.8 * share_bytes(plan) < took <= share_bytes(plan)


def test_a_launch_that_is_short_of_time_writes_less_and_keeps_more(plan_of):
    """Six rounds have to fit, so blocks are shorter, and few rounds follow."""
    plan = plan_of(512)
    numbers = sampled(plan, calls=25, rounds_s=9.0)
    assert numbers is None or len(numbers) > len(sampled(plan, calls=25))


def test_what_a_budget_left_out_is_in_no_sample(plan_of):
    without = Content(without=(DETAILS, SWEEP, REPLAYS))
    assert sampled(plan_of(512, records_bytes_max=GIB), calls=100, content=without) is None


def test_a_bound_that_holds_nothing_keeps_the_least(plan_of):
    assert len(sampled(plan_of(2, records_bytes_max=1), calls=8)) == LEAST_DETAILED


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    whole=st.floats(1e3, 1e8),
    share=st.floats(0, 1),
    room=st.floats(1, 1e12),
    most=st.integers(1, 400),
    s=st.floats(1, 1e4),
)
def test_a_sample_stays_within_its_room_or_is_the_least(plan_of, whole, share, room, most, s):
    measure = replace(plan_of().spec.measure, rounds_max=most)
    numbers = detailed_rounds(measure, Round(whole, 3.0), Round(whole * share, 1.0), room=room, rounds_s=s)
    if numbers is None:
        likely = min(most, 2 * max(6, math.ceil(s / 3.0)))
        assert likely <= LEAST_DETAILED or likely * whole <= room
        return
    assert numbers == tuple(sorted(set(numbers)))
    assert numbers[:3] == (0, 1, 2)
    assert numbers[-1] < most
    assert len(numbers) == LEAST_DETAILED or len(numbers) * whole <= room


def test_a_sample_is_spread_evenly_after_the_first_three_rounds():
    assert spread(6, 60) == (0, 1, 2, 12, 31, 50)
    assert spread(60, 60) == tuple(range(60))
    gaps = [b - a for a, b in zip(spread(20, 60)[3:], spread(20, 60)[4:], strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_a_round_without_details_has_the_baseline_plain_and_controls(plan_of):
    plan = replace(plan_of(), content=Content(detailed=(0, 1, 2, 5)))
    for number in range(8):
        kinds = Counter(
            (b.arm, b.detailed) for b in round_blocks(plan, plan.trials, 0, number) if b.trial.world_size == 8
        )
        del kinds[BARE_ONE, False]
        asked = WHOLE if number in (0, 1, 2, 5) else Content(without=(DETAILS, SWEEP, REPLAYS))
        assert kinds == Counter(arms_of(8, asked))
    light = {b.arm for b in round_blocks(plan, plan.trials, 0, 3)}
    assert light == {BARE_ONE, PLAIN, PROBE}


def test_rounds_with_details_are_what_they_are_without_a_sample(plan_of):
    plan = plan_of()
    some = replace(plan, content=Content(detailed=(0, 1, 2, 5)))
    for number in (0, 2, 5):
        assert round_blocks(some, plan.trials, 0, number) == round_blocks(plan, plan.trials, 0, number)


def test_why_is_said_with_the_share_of_a_host(plan_of):
    assert details_line(plan_of(512), (*range(9), 20), rounds=10) == (
        "details in 9 of 10 rounds, chosen before the run: with more, rank files would take more than 64 MiB a host "
        "and launch (measure.records_max=32 GiB)"
    )


def test_a_plan_for_slurm_which_times_no_step_says_what_decides(plan_of, tmp_path):
    plan = plan_of(512)
    elsewhere = replace(plan, spec=replace(plan.spec, launcher="slurm"))
    assert (
        "rank files: 64 MiB a host and launch (measure.records_max=32 GiB); beyond it only some rounds have details"
        in describe(elsewhere, RunFolder(tmp_path))
    )


def test_a_launch_that_has_counted_what_it_records_chooses_its_rounds(plan_of):
    each = dict.fromkeys((1, 2, 4, 8), 0.01)
    costs = Costs(step_s=each, alone_s=each, exchange_s=each, sweep_s=each)
    plan = plan_of(records_bytes_max=1)
    counted = replace(costs, traffic=dict.fromkeys(SIZES, Traffic(calls=8)))
    assert fit_training(plan, plan.trials, costs).content.detailed is None
    assert len(fit_training(plan, plan.trials, counted, warm=True).content.detailed) == LEAST_DETAILED


def test_the_fewest_rounds_are_said_to_be_that_whatever_their_files_take(plan_of):
    assert details_line(plan_of(1, records_bytes_max=50 * 2**10), spread(6, 60), rounds=36) == (
        "details in 5 of 36 rounds, chosen before the run: rank files may take 50 KiB a host and launch "
        "(measure.records_max=50 KiB), but 6 rounds have details at least"
    )
