"""Which messages the size sweep sends."""

from __future__ import annotations

import itertools

import pytest

from scaling.spec import sweep
from scaling.spec.run import Measure

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
    found = sweep.messages([0, 3], [KIB, MIB], "gloo")
    assert {m.calls for m in found} == {1}
    assert [(m.kind, m.bytes) for m in dict.fromkeys(found)] == [(0, KIB), (0, MIB), (3, KIB), (3, MIB)]
    assert [len(list(same)) for _, same in itertools.groupby(found)] == [sweep.SMALL_REPEATS, 1] * 2


def test_over_a_device_many_are_enqueued_and_small_ones_also_sent_alone():
    found = sweep.messages([0], [KIB, 64 * MIB, 512 * MIB], "nccl")
    assert [m.calls for m in found] == [1] * sweep.SHOTS + [sweep.MANY, sweep.SOME, sweep.FEW]
    assert [m.sent for m in found][-3:] == [sweep.MANY + 1, sweep.SOME + 1, sweep.FEW + 1]


@pytest.mark.parametrize(("backend", "top"), [("gloo", 4 * MIB), ("nccl", 512 * MIB), ("simccl", 512 * MIB)])
def test_devices_are_swept_to_512_mib_and_more(backend, top):
    assert sweep.largest(measure(), backend) == top
    found = list(sweep.sizes(top, backend))
    assert (found[0], found[-1]) == (KIB, top)
    assert {b // a for a, b in itertools.pairwise(found)} == {sweep.growth(backend)}
    assert sweep.largest(measure(fabric_bytes_max=2**31), backend) == 2**31


def test_a_size_is_affordable_if_the_whole_measurement_of_the_next_is():
    assert sweep.affordable(0.25, MIB, measure(), "gloo")
    assert not sweep.affordable(0.26, MIB, measure(), "gloo")
    assert sweep.affordable(0.024, MIB, measure(), "nccl")
    assert not sweep.affordable(0.026, MIB, measure(), "nccl")
