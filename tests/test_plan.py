"""The schedule: every arm of every trial in every round, in random order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.plan import arms_of, bare_ranks, make_plan, round_blocks

ROUNDS = range(12)


@pytest.fixture
def plan_of(cluster):
    """plan_of(changes of the simulated cluster): its plan."""

    def made(**changes):
        truth = cluster.Truth(**changes)
        return make_plan(cluster.spec_of(truth), run_id="run", created="", version="")

    return made


def schedule(plan, launch=0):
    return [round_blocks(plan, plan.trials, launch, number) for number in ROUNDS]


def order(blocks):
    return [(b.trial.world_size, b.arm, b.detailed) for b in blocks]


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
    for blocks in schedule(plan_of(world_sizes=(1, 2, 4))):
        bare = [b for b in blocks if b.arm == "bare_one"]
        assert [b.trial.world_size for b in bare] == [4] * 4
        assert {b.solo_rank for b in bare} == {0, 1, 2, 3}


def test_in_strong_scaling_every_trial_has_its_own_batch_and_baseline(plan_of):
    plan = plan_of(world_sizes=(1, 2, 4), mode="strong", batch=64)
    assert [t.batch for t in plan.trials] == [64, 32, 16]
    for blocks in schedule(plan):
        assert {b.trial.world_size for b in blocks if b.arm == "bare_one"} == {1, 2, 4}


# The baseline's turns


@settings(deadline=None)
@given(st.integers(1, 200))
def test_the_baseline_visits_every_rank_within_a_few_rounds(n):
    rounds = -(-n // min(n, 4))
    assert {rank for number in range(rounds) for rank in bare_ranks(n, number)} == set(range(n))


def test_of_sixteen_ranks_four_take_their_turn_in_a_round(plan_of):
    turns = [
        {b.solo_rank for b in blocks if b.arm == "bare_one"}
        for blocks in schedule(plan_of(world_sizes=(16,), hosts=16))
    ]
    assert all(len(ranks) == 4 for ranks in turns)
    assert set.union(*turns[:4]) == set(range(16))


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(0, 1000))
def test_no_rank_takes_two_turns_in_a_round(n, number):
    ranks = bare_ranks(n, number)
    assert len(set(ranks)) == len(ranks) == min(n, 4)


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
