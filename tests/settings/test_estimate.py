"""How long a run takes by the steps of its tryout: on shared cores, with divided layers, in words, or refused."""

from dataclasses import replace

import pytest

from scaling.config.compose import requests
from scaling.settings.budget import fit_training
from scaling.settings.estimate import (
    Machine,
    TimedStep,
    Timing,
    fit,
    left_out_lines,
    promise,
    refusal,
    rounded_up,
    synthetic_timing,
    training_costs,
)
from scaling.settings.plan import DETAILS, WHOLE, Content, make_plan

MACHINE = Machine(cores=2)


SLEEPS = ("model=synthetic", "model.param_mb=2", "model.compute_ms=100")


def plan_of(ranks, *more):
    (request,) = requests(
        "run",
        [
            *SLEEPS,
            "topology=local",
            "topology.device=cpu",
            f"topology.ranks_per_host={ranks}",
            f"world_sizes=[1,{ranks}]",
            "measure=quick",
            *more,
        ],
    ).items
    return make_plan(request.spec, run_id="run", created="", version="")


def timing(*steps, **known):
    return Timing(start_s=3.0, steps=tuple(TimedStep(batch=batch, step_s=s) for batch, s in steps), **known)


def costs_of(plan, machine=MACHINE):
    return training_costs(plan, synthetic_timing(plan.spec, machine), machine)


def fit_synthetic(plan):
    return fit(plan, synthetic_timing(plan.spec, MACHINE), MACHINE)


# Steps and machines


def test_a_step_between_two_that_were_timed_lies_on_their_line():
    known = timing((2, 0.3), (8, 0.6))
    assert known.step_s(2) == known.step_s(1) == 0.3
    assert known.step_s(5) == pytest.approx(0.45)
    assert known.step_s(32) == pytest.approx(0.6 + 24 * 0.05)


def test_a_line_that_falls_is_not_believed():
    assert timing((2, 0.5), (8, 0.4)).step_s(80) > 0.4 * 4


def test_noise_of_two_small_batches_does_not_make_a_large_one_slower_than_its_samples():
    assert timing((2, 3.0), (4, 8.0)).step_s(32) == pytest.approx(8.0 * 32 / 4)
    assert timing((2, 3.0)).step_s(32) == pytest.approx(3.0 * 32 / 2), "a single batch was timed"


def test_ranks_that_share_cores_are_slower():
    assert Machine(cores=4).slower(2) == pytest.approx(1.1)
    assert Machine(cores=2).slower(4) == pytest.approx(2 * 1.1)
    assert Machine(cores=2, beside=2).slower(2) > Machine(cores=2).slower(2)
    assert Machine(cores=2).slower(1) == 1


def test_other_programs_make_many_ranks_slower_still():
    assert Machine(cores=2).shared(64) == pytest.approx(32 * 1.1)
    assert Machine(cores=2, beside=2).shared(64) == pytest.approx(33 * 1.1)
    assert Machine(cores=4).shared(1) == 1


# Pieces of a launch


def test_64_ranks_on_two_cores_take_the_time_that_their_messages_take():
    """Measured on two cores: 1.6 to 1.7 s a step that sleeps 0.1 s, and 0.6 to 0.7 s a message of 1 KiB."""
    costs = costs_of(plan_of(64))
    assert costs.alone_s[64] == pytest.approx(0.104, abs=0.002)
    assert 1.2 < costs.step_s[64] < 2.0
    assert costs.exchange_s[64] > 0.75 * costs.step_s[64]
    assert costs.block_s[64] > 10 * costs.block_s[1]


def test_ranks_with_cores_of_their_own_take_no_longer():
    """2 MiB over loopback, at 0.5 GB/s."""
    costs = costs_of(plan_of(2))
    assert costs.exchange_s[2] == pytest.approx(2 * 2**20 / 0.5e9)
    assert costs.step_s[2] == pytest.approx(costs.alone_s[2] + costs.exchange_s[2], abs=1e-3)


def test_a_rank_with_half_of_every_layer_computes_half_and_sends_no_gradients():
    divided = costs_of(plan_of(2, "parallel=tp"))
    assert divided.exchange_s[2] == 0
    assert divided.step_s[2] == pytest.approx(divided.alone_s[2] / 2, abs=1e-3)


# What a run says


def test_what_64_ranks_leave_no_time_for_is_said_with_a_budget_that_holds_it():
    plan = plan_of(64)
    fitted = fit_synthetic(plan)
    assert fitted.fits
    assert DETAILS in fitted.content.without
    more = replace(plan.spec.measure, budget_s=fitted.content.whole_s)
    plan = replace(plan, spec=replace(plan.spec, measure=more))
    assert fit_synthetic(plan).content.without == ()


def test_a_promise_holds_all_of_a_run():
    plan, known = plan_of(2), timing((2, 0.05), (32, 0.4))
    said = promise(plan, known, MACHINE, fit(plan, known, MACHINE), 6.0)
    assert said.seconds == said.tried_s + said.start_s + said.warmup_s + said.rounds_s + said.end_s
    twice = replace(said, launches=2)
    assert twice.seconds - said.seconds == pytest.approx(said.start_s + said.warmup_s + said.rounds_s)


def test_after_a_search_for_the_largest_batch_rounds_have_all_of_the_budget():
    plan = plan_of(2, "batch=max", "memory_limit=1GiB")
    known = timing((2, 0.001))
    fitted = fit(plan, known, MACHINE)
    assert (fitted.fits, fitted.content) == (True, WHOLE)
    assert fitted.rounds_s == plan.spec.measure.budget_s
    assert promise(plan, known, MACHINE, fitted, 0.0).search_s > plan.spec.measure.budget_s


def test_what_is_left_out_is_named_with_the_budget_that_would_hold_it():
    plan = plan_of(2, "task=inference")
    (line,) = left_out_lines(plan, Content(batch_most=1, world_sizes=(2,)))
    assert line == "the budget of 28 s leaves out batch 8, 32; world size 1"
    (line,) = left_out_lines(plan, Content(batch_most=1, whole_s=101.0))
    assert line.endswith("; measure.budget_s=110 would hold all")
    assert left_out_lines(plan, WHOLE) == ()


def test_a_refusal_says_the_step_and_a_budget_that_is_enough():
    plan, known = plan_of(2), timing((2, 41.2))
    refused = fit(plan, known, MACHINE)
    text = refusal(plan, known, refused.enough_s)
    assert not refused.fits
    assert text.startswith(
        "measure.budget_s=28: too short for 3 rounds of the least (a step of batch 2 took 41 s"
    )
    assert text.endswith(f"measure.budget_s={rounded_up(refused.enough_s)} is enough")
    named = replace(plan.spec.measure, budget_s=float(rounded_up(refused.enough_s)))
    again = replace(plan, spec=replace(plan.spec, measure=named))
    assert fit_training(again, again.trials, training_costs(again, known, MACHINE)).fits


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, 1), (7.1, 8), (28.0, 28), (101, 110), (1234, 1300), (98765, 99000)]
)
def test_budgets_are_named_in_two_figures(seconds, said):
    assert rounded_up(seconds) == said
