"""Ranks that share cores: what that does to a step, to a message, and to what a run plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.config.compose import requests
from scaling.spec.costs import fit, synthetic_timing, training_costs
from scaling.spec.machine import Machine
from scaling.spec.plan import make_plan
from scaling.spec.promise import DETAILS

MACHINE = Machine(cores=2)


def plan_of(ranks, *more):
    (request,) = requests(
        "run",
        [
            "model=synthetic",
            "model.param_mb=2",
            "model.compute_ms=100",
            "topology=local",
            "topology.device=cpu",
            f"topology.ranks_per_host={ranks}",
            f"world_sizes=[1,{ranks}]",
            "measure=quick",
            *more,
        ],
    ).items
    return make_plan(request.spec, run_id="run", created="", version="")


def costs_of(plan, machine=MACHINE):
    return training_costs(plan, synthetic_timing(plan.spec, machine), machine)


def test_ranks_that_share_cores_are_slower():
    assert Machine(cores=4).slower(2) == pytest.approx(1.1)
    assert Machine(cores=2).slower(4) == pytest.approx(2 * 1.1)
    assert Machine(cores=2, beside=2).slower(2) > Machine(cores=2).slower(2)
    assert Machine(cores=2).slower(1) == 1


def test_other_programs_make_many_ranks_slower_still():
    assert Machine(cores=2).shared(64) == pytest.approx(32 * 1.1)
    assert Machine(cores=2, beside=2).shared(64) == pytest.approx(33 * 1.1)
    assert Machine(cores=4).shared(1) == 1


def test_64_ranks_on_two_cores_take_the_time_that_their_messages_take():
    """Measured on two cores: 1.6 to 1.7 s a step that sleeps 0.1 s, and 0.6 to 0.7 s a message of 1 KiB."""
    found = costs_of(plan_of(64))
    assert found.alone_s[64] == pytest.approx(0.104, abs=0.002)
    assert 1.2 < found.step_s[64] < 2.0
    assert found.exchange_s[64] > 0.75 * found.step_s[64]
    assert found.block_s[64] > 10 * found.block_s[1]


def test_ranks_with_cores_of_their_own_take_no_longer():
    """2 MiB over loopback, at 0.5 GB/s."""
    found = costs_of(plan_of(2))
    assert found.exchange_s[2] == pytest.approx(2 * 2**20 / 0.5e9)
    assert found.step_s[2] == pytest.approx(found.alone_s[2] + found.exchange_s[2], abs=1e-3)


def test_what_64_ranks_leave_no_time_for_is_said_with_a_budget_that_holds_it():
    plan = plan_of(64)
    fitted = fit(plan, synthetic_timing(plan.spec, MACHINE), MACHINE)
    assert fitted.fits
    assert DETAILS in fitted.content.without
    more = replace(plan.spec.measure, budget_s=fitted.content.whole_s)
    plan = replace(plan, spec=replace(plan.spec, measure=more))
    assert fit(plan, synthetic_timing(plan.spec, MACHINE), MACHINE).content.without == ()
