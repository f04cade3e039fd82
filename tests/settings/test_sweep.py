"""Which messages the size sweep sends."""

from __future__ import annotations

import itertools

import pytest

from scaling.settings import schedule
from scaling.settings.run import Measure

KIB, MIB = 2**10, 2**20


def measure(**changes):
    values = {
        "name": "test",
        "rounds_min": 3,
        "rounds_max": 10,
        "steps": 8,
        "lead_in": 3,
        "warmup_max": 30,
        "target_half_width": None,
        "budget_s": 100.0,
        "fabric_bytes_max": 4 * MIB,
        "step_timeout_s": 60.0,
    }
    return Measure(**(values | changes))


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
