"""A warm-up tells how far it is often enough for slow steps, and never while they are timed."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from scaling.worker.clock import now_ns
from scaling.worker.control import Control
from scaling.worker.devices import Device
from scaling.worker.feed import Feed
from scaling.worker.prepare import WARMUP_CHUNK, warm_up
from scaling.worker.progress import COMPILE_S

STEP, COMPILED = "a step", "compiled"


class Told:
    """A loop that writes down what is asked of it."""

    def __init__(self, log):
        self.log = log

    def plain(self):
        self.log.append(STEP)
        return [now_ns(), now_ns()]

    def local(self):
        self.log.append(COMPILED)


def warmed(*, compiles):
    """What happened, in order: steps, and words as (what, expected s)."""
    log = []
    loops = [Told(log), Told(log)]
    arms = SimpleNamespace(
        compiles=compiles,
        loops=lambda: loops,
        plain=loops[1],
        detailed=None,
        feeds=list,
        feed=lambda _arm: Feed([]),
        load=None,
    )
    warm_up(
        SimpleNamespace(world_size=1),
        arms,
        group=None,
        participants=1,
        device=Device(),
        control=Control(dist.HashStore(), 0),
        exchange=None,
        measure=SimpleNamespace(warmup_max=9),
        rank=0,
        word=lambda what, expected_s: log.append((what, expected_s)),
    )
    return log


@pytest.mark.parametrize("compiles", [False, True])
def test_there_is_a_new_word_before_every_few_steps(compiles):
    log = warmed(compiles=compiles)
    words = [entry for entry in log if isinstance(entry, tuple)]
    runs = [len(list(steps)) for entry, steps in itertools.groupby(log) if entry == STEP]
    assert set(runs) == {WARMUP_CHUNK}
    assert len(words) == len(set(words)) > len(runs)
    assert isinstance(log[0], tuple)


def test_compiling_is_waited_for_longer_wrapper_by_wrapper():
    log = warmed(compiles=True)
    before = [log[place - 1] for place, entry in enumerate(log) if entry == COMPILED]
    assert before == [("compiling 1 of 2", COMPILE_S), ("compiling 2 of 2", COMPILE_S)]
