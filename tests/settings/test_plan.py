"""The schedule: every arm of every trial in every round, in random order."""

from __future__ import annotations

import pytest
from support.commands import planned

from scaling.cli.verbs.plan import describe
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan
from scaling.settings.schedule import round_blocks

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
        return planned(*asked, f"world_sizes=[1,8,{8 * hosts}]")

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
