"""The schedule: every arm of every trial in every round, in random order."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaling.cli.planned import describe, document
from scaling.config.compose import requests
from scaling.records import codec
from scaling.records.paths import RunFolder
from scaling.spec.plan import HARNESS, OWN_LOOP, TRACE, Plan, make_plan
from scaling.spec.schedule import BARE_ONE, PAIRS, arms_of, bare_ranks, half_batch, round_blocks

ROUNDS = range(12)


@pytest.fixture
def plan_of(cluster):
    """plan_of(changes of the simulated cluster): its plan."""

    def made(**changes):
        truth = cluster.Truth(**changes)
        return make_plan(cluster.spec_of(truth), run_id="run", created="", version="")

    return made


@pytest.fixture
def plan_on_cluster():
    """plan_on_cluster(hosts): a plan of 8 ranks on each."""

    def made(hosts):
        asked = ["topology=nvlink_node", "topology.ranks_per_host=8", f"topology.hosts={hosts}"]
        (one,) = requests("plan", [*asked, f"world_sizes=[1,8,{8 * hosts}]"]).items
        return make_plan(one.spec, run_id="20260101-000000-abc", created="", version="")

    return made


def schedule(plan, launch=0):
    return [round_blocks(plan, plan.trials, launch, number) for number in ROUNDS]


def order(blocks):
    return [(b.trial.world_size, b.arm, b.detailed) for b in blocks]


# Start-up


def test_a_plan_of_many_ranks_says_that_their_start_is_extrapolated(plan_on_cluster):
    few, many = (describe(plan_on_cluster(hosts), RunFolder("r")) for hosts in (64, 512))
    assert "what 512 ranks on 64 hosts take to join, 1.2 to 1.8 s" in few
    assert "extrapolated" not in few
    assert "that is extrapolated: joining was measured up to 512 ranks" in many


# Source


@pytest.mark.parametrize(
    ("launcher", "source"), [("emulated", HARNESS), ("own loop", OWN_LOOP), ("trace", TRACE)]
)
def test_a_plan_from_before_it_had_a_source_says_it_by_its_launcher(plan_of, launcher, source):
    old = codec.encode(plan_of())
    del old["source"]
    old["spec"]["launcher"] = launcher
    assert codec.decode(Plan, old).source == source


@pytest.mark.parametrize("source", [HARNESS, OWN_LOOP, TRACE])
def test_a_source_is_written_and_read(plan_of, source):
    plan = replace(plan_of(), source=source)
    assert codec.decode(Plan, codec.encode(plan)) == plan
    assert plan.own_loop == (source == OWN_LOOP)


# Order


def test_equal_seeds_give_the_same_schedule(plan_of):
    assert schedule(plan_of(seed=1)) == schedule(plan_of(seed=1))


def test_other_seeds_and_launches_give_other_schedules(plan_of):
    plan = plan_of(seed=1)
    assert schedule(plan) != schedule(plan_of(seed=2))
    assert order(schedule(plan)[0]) != order(schedule(plan, launch=1)[0])


def test_rounds_differ_in_order_and_not_in_what_they_hold(plan_of):
    rounds = [order(blocks) for blocks in schedule(plan_of())]
    assert len({tuple(r) for r in rounds}) == len(rounds)
    assert len({tuple(sorted(r)) for r in rounds}) == 1


def test_no_arm_has_a_fixed_place(plan_of):
    places = [order(blocks).index((4, "plain", False)) for blocks in schedule(plan_of(world_sizes=(4,)))]
    assert len(set(places)) > 3


# Content


def test_every_arm_of_every_trial_runs_in_every_round(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4))
    for blocks in schedule(plan):
        for trial in plan.trials:
            found = Counter((b.arm, b.detailed) for b in blocks if b.trial == trial and b.arm != "bare_one")
            assert found == Counter(arms_of(trial.world_size))


def test_plain_runs_twice_a_round_so_that_it_can_be_held_against_itself():
    for n in (1, 2, 8):
        assert arms_of(n).count(("plain", False)) == 2


def test_one_rank_alone_has_no_neighbours_and_no_wire():
    assert {arm for arm, _ in arms_of(1)} == {"plain", "probe"}


def test_in_weak_scaling_the_baseline_runs_once_a_round_at_the_largest_trial(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4))
    for blocks in schedule(plan):
        bare = [b for b in blocks if b.arm == "bare_one" and b.trial in plan.trials]
        assert [b.trial.world_size for b in bare] == [4] * 4
        assert {b.solo_rank for b in bare} == {0, 1, 2, 3}


def test_in_weak_scaling_one_rank_of_the_baseline_runs_half_of_its_batch_too(plan_of):
    found = [
        [b for b in blocks if b.trial.batch == 16]
        for blocks in schedule(plan_of(world_sizes=(1, 4), batch=32))
    ]
    assert all([(b.arm, b.trial.world_size) for b in half] == [("bare_one", 4)] for half in found)
    assert {half[0].solo_rank for half in found} == {0, 1, 2, 3}


@pytest.mark.parametrize("batch", [33, 2])
def test_a_batch_that_cannot_be_halved_is_not(plan_of, batch):
    """One sample is too few: batch norm cannot train on it."""
    plan = plan_of(world_sizes=(1, 4), batch=batch)
    assert half_batch(plan.spec) is None
    assert {b.trial.batch for b in schedule(plan)[0]} == {batch}


def test_in_strong_scaling_every_trial_has_its_own_batch_and_baseline(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4), mode="strong", batch=64)
    assert [t.batch for t in plan.trials] == [64, 32, 16]
    for blocks in schedule(plan):
        assert {b.trial.world_size for b in blocks if b.arm == "bare_one"} == {1, 2, 4}


# The baseline's turns


sizes = st.sets(st.integers(1, 200), min_size=1, max_size=8)


@given(sizes)
def test_the_baseline_visits_every_rank_in_the_end(world_sizes):
    n = max(world_sizes)
    assert {rank for number in range(n) for rank in bare_ranks(tuple(world_sizes), number)} == set(range(n))


@given(sizes, st.integers(0, 1000))
def test_each_world_size_has_a_rank_of_its_own_in_every_round_and_none_two_turns(world_sizes, number):
    ranks = bare_ranks(tuple(world_sizes), number)
    assert len(set(ranks)) == len(ranks) == max(len(world_sizes), min(max(world_sizes), 4))
    before = 0
    for n in sorted(world_sizes):
        assert any(before <= rank < n for rank in ranks)
        before = n


def test_up_to_four_ranks_all_take_their_turn_in_every_round(plan_of):
    for blocks in schedule(plan_of(world_sizes=(1, 2, 4))):
        assert sorted(b.solo_rank for b in blocks if b.arm == "bare_one" and b.trial.batch == 32) == [
            0,
            1,
            2,
            3,
        ]


def test_of_sixteen_ranks_four_take_their_turn_in_a_round(plan_of):
    turns = [
        {b.solo_rank for b in blocks if b.arm == "bare_one"}
        for blocks in schedule(plan_of(world_sizes=(16,), hosts=16))
    ]
    assert all(len(ranks) == 4 for ranks in turns)
    assert set.union(*turns[:4]) == set(range(16))


# Blocks


def test_block_ids_are_unique_over_rounds(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4, 8, 16, 32), hosts=32)
    ids = [b.id for blocks in schedule(plan) for b in blocks]
    assert len(set(ids)) == len(ids)
    assert {b.round for b in schedule(plan)[3]} == {3}


def test_ranks_beyond_a_trial_wait(plan_of):
    for block in schedule(plan_of(world_sizes=(1, 2, 4)))[0]:
        runs = [rank for rank in range(4) if block.runs_on(rank)]
        expected = [block.solo_rank] if block.arm == "bare_one" else list(range(block.trial.world_size))
        assert runs == expected


def test_a_launch_is_as_large_as_its_largest_trial(plan_of):
    plan = plan_of(world_sizes=(1, 2, 6), hosts=2, ranks_per_host=4)
    assert (plan.ranks, plan.hosts) == (6, 2)
    assert [t.hosts for t in plan.trials] == [1, 1, 2]


def test_trials_that_are_left_keep_their_schedule_complete(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4))
    left = tuple(t for t in plan.trials if t.world_size != 4)
    blocks = round_blocks(plan, left, 1, 0)
    assert {b.trial.world_size for b in blocks} == {1, 2}
    assert {b.solo_rank for b in blocks if b.arm == "bare_one"} == {0, 1}


def test_strong_scaling_brings_its_baseline_to_every_launch(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4), mode="strong", batch=64)
    left = tuple(t for t in plan.trials if t.world_size == 4)
    blocks = round_blocks(plan, left, 1, 0, plan.baseline(left))
    assert {(b.arm, b.solo_rank, b.trial.batch) for b in blocks if b.trial.world_size == 1} == {
        ("bare_one", 0, 64)
    }
    assert plan.baseline(plan.trials) == ()
    assert plan_of(world_sizes=(1, 2, 4)).baseline(left) == ()


# Spread over the hosts


def spread(plan_of, **changes):
    return plan_of(**{"placement": "spread", "world_sizes": (1, 2, 4), "hosts": 4} | changes)


def test_spread_ranks_train_in_as_many_sub_groups_as_there_is_room_for(plan_of):
    plan = spread(plan_of, world_sizes=(1, 2, 3, 7), hosts=7)
    assert plan.sub_groups(2) == ((0, 1), (2, 3), (4, 5))
    assert plan.sub_groups(3) == ((0, 1, 2), (3, 4, 5))
    assert plan.sub_groups(7) == (tuple(range(7)),)
    assert plan.sub_groups(2, ranks=3) == ((0, 1),)  # a launch of what was left


def test_packed_ranks_train_in_one_group_and_in_no_pairs(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4))
    assert [plan.sub_groups(n) for n in (1, 2, 4)] == [((0,),), ((0, 1),), ((0, 1, 2, 3),)]
    assert plan.pairings() == ()


def test_placement_changes_who_runs_and_not_what_is_reported(plan_of):
    def reported(plan):
        return [
            Counter((b.trial.world_size, b.arm, b.detailed, b.solo_rank) for b in blocks if b.arm != PAIRS)
            for blocks in schedule(plan)
        ]

    packed = plan_of(world_sizes=(1, 2, 4))
    assert reported(spread(plan_of)) == reported(packed)
    assert all(block.groups[0] == (0, 1) for block in schedule(spread(plan_of))[0] if block.key == 2)


def test_one_rank_is_measured_alone_however_ranks_are_placed(plan_of):
    for block in schedule(spread(plan_of))[0]:
        if block.trial.world_size == 1 or block.arm == BARE_ONE:
            assert block.participants == 1
            assert block.runs_on(max(block.solo_rank, 0))
        else:
            assert [block.runs_on(rank) for rank in range(5)] == [True] * 4 + [False]


def test_pairs_belong_to_the_trial_that_every_rank_is_in(plan_of):
    plan = spread(plan_of)
    pairs = [b for b in schedule(plan)[0] if b.arm == PAIRS]
    assert sorted((b.key, b.groups) for b in pairs) == [(-2, ((1, 2), (0, 3))), (-1, ((0, 1), (2, 3)))]
    assert {b.trial.world_size for b in pairs} == {4}
    left = tuple(t for t in plan.trials if t.world_size < 4)
    assert not [b for b in round_blocks(plan, left, 1, 0, ranks=4) if b.arm == PAIRS]  # 4 ranks did not fit


@given(st.integers(1, 9), st.integers(1, 4), st.data())
def test_every_host_is_paired_with_two_others(cluster, hosts, ranks_per_host, data):
    ranks = data.draw(st.integers(1, hosts * ranks_per_host))
    truth = cluster.Truth(
        world_sizes=(ranks,), hosts=hosts, ranks_per_host=ranks_per_host, placement="spread"
    )
    plan = make_plan(cluster.spec_of(truth), run_id="run", created="", version="")
    topology, partners = plan.spec.topology, {}
    for pairs in plan.pairings():
        members = [rank for pair in pairs for rank in pair]
        assert len(set(members)) == len(members)  # at the same time
        for a, b in pairs:
            partners.setdefault(topology.host_of(a), set()).add(topology.host_of(b))
            partners.setdefault(topology.host_of(b), set()).add(topology.host_of(a))
    touched = topology.hosts_of(ranks)
    assert set(partners) == (set(range(touched)) if touched > 2 else set())
    assert all(len(found - {host}) == len(found) >= 2 for host, found in partners.items())


def test_what_a_link_promises_is_unknown_where_sub_groups_share_it(plan_of):
    whole = spread(plan_of)
    assert whole.nominal_bit_s(2) == whole.nominal_bit_s(4) == whole.spec.topology.link.nominal_bit_s
    shared = spread(plan_of, hosts=2, ranks_per_host=2)
    assert shared.nominal_bit_s(2) is None
    assert spread(plan_of, hosts=2, world_sizes=(2,)).nominal_bit_s(2) is not None


def test_the_plan_counts_the_hours_that_ranks_stand_idle_under_either_placement(plan_of, tmp_path):
    plans = plan_of(world_sizes=(1, 2, 4)), spread(plan_of)
    idle = [document(plan, RunFolder(tmp_path))["idle_rank_hours_max"] for plan in plans]
    # A round: 3 blocks at 1 rank and 5 of bare_one, 8 at 2 ranks and 8 at 4; spread, 2 of pairs.
    budget_h = plans[0].spec.measure.budget_s / 3600
    assert idle == pytest.approx([(8 * 3 + 8 * 2) / 24 * budget_h, 8 * 3 / 26 * budget_h])
    assert f"{idle[1]:.3f} rank-hours stand idle" in describe(plans[1], RunFolder(tmp_path))


# Bounds


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: p.update(trials=[]), "Plan.trials=(): at least one item is expected"),
        (lambda p: p["trials"][0].update(world_size=10**9), "at most 16384 is expected"),
        (lambda p: p["trials"][0].update(world_size=0), "world_size=0: at least 1 is expected"),
        (lambda p: p["trials"][0].update(hosts=10**9), "at most 16384 is expected"),
        (
            lambda p: p["spec"]["topology"].update(ranks_per_host=0),
            "ranks_per_host=0: at least 1 is expected",
        ),
        (lambda p: p["spec"]["topology"].update(hosts=2**63), "at most 131072 is expected"),
    ],
)
def test_a_plan_that_no_machine_could_run_is_not_read(plan_of, change, why):
    plan = codec.encode(plan_of())
    change(plan)
    with pytest.raises(ValueError, match=re.escape(why)):
        codec.decode(Plan, plan)
