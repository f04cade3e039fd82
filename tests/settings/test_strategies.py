"""The blocks of strategies side by side: each one's own arms, and those that need none once."""

from __future__ import annotations

from collections import Counter

import pytest

from scaling.config.compose import requests
from scaling.settings.plan import make_plan
from scaling.settings.schedule import BARE_ALL, DDP_SOLO, FABRIC, OF_NONE, PLAIN, PROBE, REPLAY, round_blocks


@pytest.fixture(scope="module")
def blocks():
    (request,) = requests(
        "run",
        [
            "topology=emulated_pcie",
            "topology.hosts=2",
            "topology.ranks_per_host=2",
            "vary.parallel=[ddp,fsdp,hsdp]",
            "model=synthetic",
        ],
    ).items
    plan = make_plan(request.spec, run_id="x", created="", version="1")
    return round_blocks(plan, plan.trials, 0, 0), plan


def test_every_strategy_runs_all_of_its_arms_in_a_round(blocks):
    ran = Counter((b.strategy, b.arm) for b in blocks[0] if b.trial.world_size == 4)
    for k in range(3):
        assert ran[k, PLAIN] == 2
        assert ran[k, PROBE] == 2
        assert ran[k, DDP_SOLO] == ran[k, REPLAY] == 1


def test_arms_without_a_strategy_run_once(blocks):
    ran = Counter(b.arm for b in blocks[0] if b.trial.world_size == 4)
    assert ran[BARE_ALL] == ran[FABRIC] == 1
    assert {b.strategy for b in blocks[0] if b.arm in OF_NONE} == {0}


def test_strategies_are_interleaved(blocks):
    order = [b.strategy for b in blocks[0] if b.trial.world_size == 4 and b.arm not in OF_NONE]
    assert order != sorted(order)


def test_ids_are_unique(blocks):
    assert len({b.id for b in blocks[0]}) == len(blocks[0])
