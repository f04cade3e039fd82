"""When an own loop compares clocks, and what it writes down of it."""

from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling import Probe
from scaling.records.format import ClockRecord
from scaling.worker.probe import agreement as clocks_module
from scaling.worker.probe import recording as recording_module
from scaling.worker.probe.agreement import EVERY_S, Clocks
from scaling.worker.probe.loop_file import ROUND_STEPS, WARMUP

TWO_KERNELS = SimpleNamespace(rank=0, kernels=[0, 1], members=[0, 1])


@pytest.fixture
def compared(monkeypatch):
    """compared(slot_s, until_s): when clocks are compared in a loop whose slots take so long, s."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(clocks_module, "now_ns", lambda: round(now.s * 1e9))
    monkeypatch.setattr(clocks_module, "compare_clocks", lambda at, *_: comparison(at))
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "new_group", lambda *_, **__: object())

    def comparison(at):
        return ClockRecord(at=at, offset_ns=5, bound_ns=1, time_ns=round(now.s * 1e9))

    def run(slot_s, until_s):
        found: list[float] = []
        own = Clocks(SimpleNamespace(**vars(TWO_KERNELS), store=dist.HashStore()))
        begin = now.s
        for slot in range(int(until_s / slot_s) + 1):
            own.look(slot, lambda record: found.append(record.time_ns / 1e9 - begin))
            now.s += slot_s
        return found

    return run


@pytest.mark.parametrize("slot_s", [0.02, 0.3, 1.0])
def test_at_first_they_are_compared_at_doubling_intervals(compared, slot_s):
    found = compared(slot_s, 1000)
    assert found[0] == pytest.approx(slot_s)
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert gaps[:8] == pytest.approx([1, 2, 4, 8, 16, 32, 64, 120], abs=slot_s / 2 + 1e-6)
    assert gaps[8:] == pytest.approx([EVERY_S] * len(gaps[8:]), abs=slot_s / 2 + 1e-6)
    assert len(gaps) > 12


def test_slots_longer_than_an_interval_are_compared_one_by_one(compared):
    found = compared(30.0, 400)
    assert found[:6] == pytest.approx([30, 60, 90, 120, 150, 180])


@pytest.mark.parametrize("until_s", [3, 10, 45, 100, 200])
def test_whenever_a_loop_ends_they_were_compared_over_a_third_of_it(compared, until_s):
    found = compared(0.1, until_s)
    assert found[-1] - found[0] > 0.3 * until_s


class Alone(Clocks):
    """A single rank goes through the whole loop; it has no other clock to compare with."""

    def __init__(self, agreement):
        super().__init__(agreement)
        self._group = object()


@pytest.fixture
def recorded(one_rank, tmp_path, monkeypatch):
    """recorded(steps, each): clock lines of a loop; `each(ddp, index)` is called between its steps."""
    monkeypatch.setattr(recording_module, "Clocks", Alone)
    ddp = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)

    def run(steps, each):
        with Probe(ddp, run_dir=tmp_path / "run") as probe:
            for index in range(steps):
                each(ddp, index)
                with probe.step():
                    ddp(torch.ones(2, 4)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
        lines = map(json.loads, (tmp_path / "run/launches/0/rank-0.jsonl").read_text().splitlines())
        return [line for line in lines if line["t"] == "clock"]

    return run


@pytest.mark.slow
def test_no_two_comparisons_are_of_the_same_instant(recorded):
    found = recorded(WARMUP + 12 * ROUND_STEPS, lambda *_: time.sleep(0.02))
    assert found[0]["at"] == "slot 1"
    assert len(found) >= 2  # the second a second later, not as many slots later as writing a file takes
    gaps_s = [(b["time_ns"] - a["time_ns"]) / 1e9 for a, b in itertools.pairwise(found)]
    assert min(gaps_s) > 0.15  # a slot


def test_a_rank_without_a_file_takes_part(recorded):
    """Its first round is lost to evaluations; its peers have theirs and compare clocks."""

    def each(ddp, index):
        if index < WARMUP + ROUND_STEPS:
            ddp.module(torch.ones(2, 4))

    found = recorded(WARMUP + 3 * ROUND_STEPS, each)
    assert found[0]["at"] == "slot 1"


def test_a_loop_of_less_than_a_round_is_compared_at_its_end(recorded):
    found = recorded(WARMUP + ROUND_STEPS - 1, lambda *_: None)
    assert [line["at"] for line in found] == ["slot 1"]
