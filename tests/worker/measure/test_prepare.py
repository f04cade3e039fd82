"""A warm-up tells how far it is often enough for slow steps, and never while they are timed."""

import contextlib
import itertools
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.data.feed import Feed
from scaling.worker.measure.prepare import WARMUP_CHUNK, warm_up
from scaling.worker.session.control import Control
from scaling.worker.session.progress import COMPILE_S

STEP, COMPILED = "a step", "compiled"


class Told:
    """A loop that writes down what is asked of it."""

    def __init__(self, log):
        self.log = log

    def plain(self):
        self.log.append(STEP)
        return [now_ns(), now_ns()]


def warmed(*, compiles):
    """What happened, in order: steps, and words as (what, expected s)."""
    log = []
    arms = SimpleNamespace(
        compiles=compiles,
        varies=False,
        warmed=lambda: (("bare_all", False, False), ("plain", False, False)),
        compile=lambda _arm, **_how: log.append(COMPILED),
        open=lambda _arm, **_how: contextlib.nullcontext(SimpleNamespace(loop=Told(log), detailed=None)),
        feeds=list,
        feed=lambda _arm: Feed([]),
        load=None,
    )
    warm_up(
        SimpleNamespace(world_size=1),
        arms,
        session=SimpleNamespace(
            device=Cpu(),
            lead=True,
            control=Control(dist.HashStore(), 0),
            spec=SimpleNamespace(measure=SimpleNamespace(warmup_max=9)),
            groups={1: None},
            rank=0,
            say=lambda what, expected_s=None: log.append((what, expected_s)),
        ),
        participants=1,
        exchange=None,
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
