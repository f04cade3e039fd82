"""What a run says before it starts: how long it takes, what is left out, or which budget is enough."""

import re

import pytest

from scaling.config.compose import requests
from scaling.errors import InputError
from scaling.launchers import tryout
from scaling.launchers.jobs import plan_request
from scaling.launchers.tryout import promised, time_model
from scaling.report.progress import TimeLeft, takes
from scaling.settings.estimate import Machine, left_out_lines
from scaling.settings.plan import WHOLE

LOCAL = ("topology=local", "topology.device=cpu", "topology.ranks_per_host=2", "measure=quick")


def plan_of(*overrides):
    (request,) = requests("plan", [*LOCAL, *overrides]).items
    return plan_request(request)


def slow(*overrides):
    return plan_of("model=synthetic", "model.compute_ms=20000", *overrides)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Whatever else runs here."""
    monkeypatch.setattr(tryout, "this_machine", lambda: Machine(cores=2))


def test_a_run_says_how_long_it_takes():
    plan = promised(plan_of("model=synthetic"))
    assert plan.content == WHOLE
    assert plan.promise.rounds_s <= plan.spec.measure.budget_s
    assert re.search(r"start-up .*, then about .*, report .*; .* in all$", takes(plan))


def test_a_budget_that_holds_nothing_is_refused_with_one_that_does():
    with pytest.raises(InputError, match=r"^measure\.budget_s=28: too short for 3 rounds") as refused:
        promised(slow())
    enough = re.search(r"(measure\.budget_s=\d+) is enough$", str(refused.value))[1]
    plan = promised(slow(enough))
    assert plan.promise is not None
    assert left_out_lines(plan, plan.content)[0].startswith("the budget of ")


def test_what_a_synthetic_step_takes_on_a_simulated_device_is_not_foretold():
    plan = plan_of("model=synthetic", "topology.device=sim")
    assert promised(plan) is plan


def test_a_plan_whose_devices_are_elsewhere_is_not_timed():
    plan = plan_of("model=synthetic", "launcher=slurm")
    assert promised(plan) is plan
    assert takes(plan).endswith("no step was timed")


def test_a_step_is_timed_by_running_it():
    timing = time_model(plan_of("model=mlp", "model.width=32", "batch_per_rank=16"), Machine(cores=2))
    assert [one.batch for one in timing.steps] == [2, 8, 16]
    assert all(one.step_s > 0 for one in timing.steps)
    assert timing.parameters_bytes > 0


def test_the_time_left_is_always_said_or_why_not():
    plan = promised(plan_of("model=synthetic"))
    assert TimeLeft(plan).words({"stage": "warm-up"}).endswith(" left")
    assert TimeLeft(plan).words({"stage": "round 1", "left_s": 5.0}).endswith(" left")
    assert "after the first round" in TimeLeft(slow()).words({"stage": "warm-up"})
