"""What fits into a budget, by what the pieces of a launch take: what is left out first, and which budget is enough."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling.settings.budget import CaseCosts, Costs, allowance_s, fit_cases, fit_training
from scaling.settings.cases import cases
from scaling.settings.estimate import rounded_up
from scaling.settings.plan import CONTROLS, DETAILS, LIGHT, REPLAYS, SWEEP, WHOLE, Content, make_plan
from scaling.settings.schedule import BARE_ONE, FABRIC, PLAIN, PROBE, REPLAY, round_blocks

QUICK = {"rounds_min": 3, "rounds_max": 6, "steps": 6, "lead_in": 2, "budget_s": 28.0}


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


# Training


def test_short_steps_leave_nothing_out(plan_of):
    plan = plan_of()
    fitted = fit_training(plan, plan.trials, costs(0.02))
    assert fitted.content == WHOLE
    assert fitted.fits
    assert fitted.rounds_s <= plan.spec.measure.budget_s


@pytest.mark.parametrize(
    ("share", "order"),
    [(0.4, (DETAILS, SWEEP, REPLAYS, CONTROLS, LIGHT)), (0.9, (CONTROLS, REPLAYS, SWEEP, DETAILS, LIGHT))],
    ids=["mostly compute", "mostly waits for data"],
)
def test_parts_go_in_the_order_that_is_said(plan_of, share, order):
    plan, sizes = plan_of(world_sizes=(1, 2, 4)), (1, 2, 4)
    seen = [
        fit_training(plan, plan.trials, costs(step, sizes, exchange_s=share * step, sweep_s=step)).content
        for step in (0.02 * 1.02**k for k in range(310))
    ]
    left_out = list(dict.fromkeys(content.without for content in seen))
    assert left_out[:3] == [order[:k] for k in range(3)]
    assert all(parts == tuple(part for part in order if part in parts) for parts in left_out)
    assert any(set(parts) == set(order) for parts in left_out)
    first = next(content for content in seen if content != WHOLE)
    assert (first.without, first.detailed) == ((), (0,)), "one round keeps all of it"
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
    fitted = fit_training(again, again.trials, costs(step_s))
    assert fitted.fits
    assert fitted.content.has(LIGHT)  # else it could name no cause


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
    assert arms(SWEEP, REPLAYS, CONTROLS) == {BARE_ONE, "bare_all", "ddp_solo", PLAIN, PROBE}
    assert arms(DETAILS, SWEEP, REPLAYS, CONTROLS) == {BARE_ONE, PLAIN, PROBE}
    assert arms(DETAILS, SWEEP, REPLAYS, CONTROLS, LIGHT) == {BARE_ONE, PLAIN}


# Cases


def test_the_largest_batches_go_first_then_world_sizes(plan_of):
    plan = plan_of(task="inference")
    asked = cases(plan.spec)
    assert [case.batch for case in asked] == [1, 8, 32]

    def held(sample_s):
        step_s = {(n, k): sample_s * case.batch for n in (1, 2) for k, case in enumerate(asked)}
        found = fit_cases(plan, asked, CaseCosts(step_s=step_s))
        return found.content.batch_most, found.content.world_sizes, found.fits

    assert held(0.001) == (None, None, True)
    assert held(0.1) == (8, None, True)
    assert held(0.5) == (1, None, True)
    assert held(3.0) == (1, (2,), True)
    assert held(30.0)[2] is False
