"""Which messages the size sweep sends.

The blocks of strategies side by side: each one's own arms, and those that need none once.
"""

import itertools
from collections import Counter

import pytest
from support.results import measure as short

from scaling.config.compose import requests
from scaling.settings import schedule
from scaling.settings.plan import make_plan
from scaling.settings.schedule import BARE_ALL, DDP_SOLO, FABRIC, OF_NONE, PLAIN, PROBE, REPLAY, round_blocks

KIB, MIB = 2**10, 2**20


def measure(**changes):
    return short(**{"fabric_bytes_max": 4 * MIB} | changes)


def test_over_gloo_each_message_is_timed_by_itself():
    found = schedule.messages([0, 3], [KIB, MIB], "gloo")
    assert {m.calls for m in found} == {1}
    assert [(m.kind, m.bytes) for m in dict.fromkeys(found)] == [(0, KIB), (0, MIB), (3, KIB), (3, MIB)]
    assert [len(list(same)) for _, same in itertools.groupby(found)] == [schedule.SMALL_REPEATS, 1] * 2


def test_over_a_device_many_are_enqueued_and_small_ones_also_sent_alone():
    found = schedule.messages([0], [KIB, 64 * MIB, 512 * MIB], "nccl")
    assert [m.calls for m in found] == [1] * schedule.SHOTS + [schedule.MANY, schedule.SOME, schedule.FEW]
    assert [m.sent for m in found][-3:] == [schedule.MANY + 1, schedule.SOME + 1, schedule.FEW + 1]


@pytest.mark.parametrize(("backend", "top"), [("gloo", 4 * MIB), ("nccl", 512 * MIB), ("simccl", 512 * MIB)])
def test_devices_are_swept_to_512_mib_and_more(backend, top):
    assert schedule.largest(measure(), backend) == top
    found = list(schedule.sizes(top, backend))
    assert (found[0], found[-1]) == (KIB, top)
    assert {b // a for a, b in itertools.pairwise(found)} == {schedule.growth(backend)}
    assert schedule.largest(measure(fabric_bytes_max=2**31), backend) == 2**31


def test_a_size_is_affordable_if_the_whole_measurement_of_the_next_is():
    assert schedule.affordable(0.25, MIB, measure(), "gloo")
    assert not schedule.affordable(0.26, MIB, measure(), "gloo")
    assert schedule.affordable(0.024, MIB, measure(), "nccl")
    assert not schedule.affordable(0.026, MIB, measure(), "nccl")


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
