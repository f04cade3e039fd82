"""What fits into a budget, by the time of a step: what is left out first, and which budget is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.config.compose import requests
from scaling.launchers.promising import refusal, rounded_up, said_left_out
from scaling.spec.budget import CaseCosts, Costs, allowance_s, fit_cases, fit_training
from scaling.spec.cases import cases, variants
from scaling.spec.costs import fit, promise, synthetic_timing, training_costs
from scaling.spec.machine import Machine
from scaling.spec.parallel import Parallel
from scaling.spec.plan import make_plan
from scaling.spec.promise import (
    CONTROLS,
    DETAILS,
    REPLAYS,
    SWEEP,
    WHOLE,
    Content,
    DividedStep,
    Sample,
    Timing,
    left_out,
)
from scaling.spec.schedule import BARE_ONE, FABRIC, PLAIN, PROBE, REPLAY, round_blocks

QUICK = {"rounds_min": 3, "rounds_max": 6, "steps": 6, "lead_in": 2, "budget_s": 28.0}
MACHINE = Machine(cores=2)
DIVIDED = (
    "parallel=tp",
    "model=synthetic",
    "model.layers=3",
    "model.activations=100",
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
)


@pytest.fixture
def plan_of(cluster):
    """plan_of(overrides of the measure, world_sizes, **of the spec): a plan for the simulated cluster's model."""

    def made(world_sizes=(1, 2), measure=(), **changes):
        spec = cluster.spec_of(cluster.Truth(world_sizes=world_sizes))
        spec = replace(spec, measure=replace(spec.measure, **(QUICK | dict(measure))), **changes)
        return make_plan(spec, run_id="run", created="", version="")

    return made


def costs(step_s, sizes=(1, 2), *, exchange_s=0.0, sweep_s=0.0):
    def each(value):
        return dict.fromkeys(sizes, value)

    return Costs(
        step_s=each(step_s), alone_s=each(step_s), exchange_s=each(exchange_s), sweep_s=each(sweep_s)
    )


def timing(*steps, **known):
    samples = tuple(Sample(batch=batch, step_s=seconds) for batch, seconds in steps)
    return Timing(start_s=3.0, steps=samples, **known)


# Training


def test_short_steps_leave_nothing_out(plan_of):
    plan = plan_of()
    fitted = fit_training(plan, plan.trials, costs(0.02))
    assert fitted.content == WHOLE
    assert fitted.fits
    assert fitted.rounds_s <= plan.spec.measure.budget_s


def test_parts_go_in_the_order_that_is_said(plan_of):
    plan, sizes = plan_of(world_sizes=(1, 2, 4)), (1, 2, 4)
    seen = [
        fit_training(plan, plan.trials, costs(0.02 * 1.02**k, sizes, exchange_s=step, sweep_s=step)).content
        for k in range(290)
        for step in (0.02 * 1.02**k,)
    ]
    order = (DETAILS, SWEEP, REPLAYS, CONTROLS)
    assert list(dict.fromkeys(content.without for content in seen)) == [order[:k] for k in range(5)]
    assert list(dict.fromkeys(content.world_sizes for content in seen))[:3] == [None, (1, 4), (4,)]


def test_what_costs_nothing_is_not_left_out(plan_of):
    plan = plan_of()
    content = fit_training(plan, plan.trials, costs(0.9)).content
    assert SWEEP not in content.without
    assert DETAILS in content.without


def test_a_slow_step_of_which_three_rounds_fit_is_measured(plan_of):
    """A step of 0.8 s in a budget of half a minute."""
    plan = plan_of()
    fitted = fit_training(plan, plan.trials, costs(0.8))
    assert fitted.fits
    assert fitted.content.holds(1)
    assert fitted.warmup_s + fitted.rounds_s <= allowance_s(plan.spec.measure)


@pytest.mark.parametrize("step_s", [5.0, 60.0, 3000.0])
def test_the_budget_that_a_refusal_names_is_enough(plan_of, step_s):
    plan = plan_of()
    refused = fit_training(plan, plan.trials, costs(step_s))
    assert not refused.fits
    again = plan_of(measure={"budget_s": float(rounded_up(refused.enough_s))})
    assert fit_training(again, again.trials, costs(step_s)).fits


def test_the_budget_that_would_hold_all_holds_all(plan_of):
    plan = plan_of()
    fitted = fit_training(plan, plan.trials, costs(0.9))
    again = plan_of(measure={"budget_s": fitted.content.whole_s})
    assert fit_training(again, again.trials, costs(0.9)).content == WHOLE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(step_s=st.floats(1e-4, 1e3), budget_s=st.floats(1, 1e4), exchange_s=st.floats(0, 10))
def test_what_fits_stays_within_the_allowance(plan_of, step_s, budget_s, exchange_s):
    plan = plan_of(measure={"budget_s": budget_s})
    fitted = fit_training(plan, plan.trials, costs(step_s, exchange_s=exchange_s))
    if fitted.fits:
        assert fitted.warmup_s + fitted.rounds_s <= allowance_s(plan.spec.measure) * 1.001
    else:
        assert fitted.enough_s > budget_s


def test_a_round_holds_what_its_content_says(plan_of):
    plan = plan_of()

    def arms(*without):
        content = Content(without=without)
        return {block.arm for block in round_blocks(replace(plan, content=content), plan.trials, 0, 0)}

    assert arms() == {BARE_ONE, "bare_all", "ddp_solo", PLAIN, PROBE, REPLAY, FABRIC}
    assert arms(DETAILS) == {BARE_ONE, PLAIN, PROBE, REPLAY, FABRIC}
    assert arms(DETAILS, SWEEP, REPLAYS, CONTROLS) == {BARE_ONE, PLAIN}


# Divided layers


def test_what_divided_layers_send_is_in_a_step(plan_of):
    """Two ranks, 32 samples, 10 calls; loopback carries 0.5 GB/s, and a small message takes 1.5 ms."""
    part = DividedStep(tensor=2, share=0.6, bytes_a_sample=1e6, calls=10)
    timed = timing((32, 0.1), parameters_bytes=10**8, divided=(part,))
    plan = plan_of(parallel=Parallel.preset("tp", 2))
    at_two = plan.trials[-1]
    assert (at_two.world_size, at_two.batch) == (2, 32)
    found = training_costs(plan, timed, MACHINE)
    assert found.exchange_s[2] == pytest.approx(32 * 1e6 / 0.5e9 + 10 * 0.0015)  # and no gradients
    one = training_costs(plan_of(), timing((32, 0.1)), MACHINE)
    assert found.step_s[2] == pytest.approx(0.6 * one.step_s[2] + found.exchange_s[2])


def test_synthetic_layers_send_their_activations():
    (request,) = requests("run", [*DIVIDED, "parallel.sequence=false"]).items
    (tokens,) = requests("run", [*DIVIDED, "parallel.sequence=true"]).items
    (part,), (by_tokens,) = (synthetic_timing(one.spec, MACHINE).divided for one in (request, tokens))
    # Of two ranks each sends half of a gather and all of a sum; 3 layers add up in forward and in backward.
    assert part == DividedStep(tensor=2, share=0.5, bytes_a_sample=6 * 4 * 100, calls=6)
    assert by_tokens == DividedStep(tensor=2, share=0.5, bytes_a_sample=7 * 4 * 100, calls=14)


# Cases


def test_the_largest_batches_go_first_then_world_sizes(plan_of):
    plan = plan_of(task="inference")
    asked = cases(plan.spec)
    assert [case.batch for case in asked] == [1, 8, 32]

    def held(sample_s):
        step_s = {(n, k): sample_s * case.batch for n in (1, 2) for k, case in enumerate(asked)}
        found = fit_cases(plan, asked, CaseCosts(step_s=step_s, change_s=dict.fromkeys(range(3), 0.0)))
        return found.content.batch_most, found.content.world_sizes, found.fits

    assert held(0.001) == (None, None, True)
    assert held(0.1) == (8, None, True)
    assert held(0.5) == (1, None, True)
    assert held(3.0) == (1, (2,), True)
    assert held(30.0)[2] is False


# What a run says


def test_a_step_between_two_that_were_timed_lies_on_their_line():
    known = timing((2, 0.3), (8, 0.6))
    assert known.step_s(2) == known.step_s(1) == 0.3
    assert known.step_s(5) == pytest.approx(0.45)
    assert known.step_s(32) == pytest.approx(0.6 + 24 * 0.05)


def test_a_line_that_falls_is_not_believed():
    assert timing((2, 0.5), (8, 0.4)).step_s(80) > 0.4 * 4


def test_every_variant_has_its_own_speed(plan_of):
    plan = plan_of(task="inference")
    known = timing((1, 0.1), variants=(1.0, 3.0))
    assert known.step_s(4, 1) == 3 * known.step_s(4, 0)
    assert len(variants(plan.spec)) == 1


def test_a_promise_holds_all_of_a_run(plan_of):
    plan = plan_of()
    known = timing((2, 0.05), (32, 0.4))
    said = promise(plan, known, MACHINE, fit(plan, known, MACHINE), 6.0)
    assert said.seconds == said.tried_s + said.start_s + said.warmup_s + said.rounds_s + said.end_s
    twice = replace(said, launches=2)
    assert twice.seconds - said.seconds == pytest.approx(said.start_s + said.warmup_s + said.rounds_s)


def test_what_is_left_out_is_named_with_the_budget_that_would_hold_it(plan_of):
    plan = plan_of(task="inference")
    content = Content(batch_most=1, world_sizes=(2,))
    parts = left_out(content, batches=(1, 8, 32), world_sizes=(1, 2))
    assert parts == ("batch 8, 32", "world size 1")
    (line,) = said_left_out(plan, content)
    assert line == "the budget of 28 s leaves out batch 8, 32; world size 1"
    assert said_left_out(plan, WHOLE) == ()


def test_a_refusal_says_the_step_and_a_budget(plan_of):
    text = refusal(plan_of(), timing((2, 41.2)), 1234.5)
    assert text.startswith("measure.budget_s=28: too short for 3 rounds of the least")
    assert "41 s" in text
    assert text.endswith("measure.budget_s=1300 is enough")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.2, 1), (7.1, 8), (28.0, 28), (101, 110), (1234, 1300), (98765, 99000)]
)
def test_budgets_are_named_in_two_figures(seconds, said):
    assert rounded_up(seconds) == said
