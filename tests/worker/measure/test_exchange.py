"""Collectives alone on a device whose stamps are events: what is written of them."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from scaling.settings.plan import Trial
from scaling.settings.schedule import FABRIC, PAIRS, REPLAY, Block, Message
from scaling.worker.measure.blocks import BlockRunner
from scaling.worker.measure.exchange import Exchange
from scaling.worker.parallel.groups import Group

KEYS = (-3, -1, 2)
"""Of the third pairing, the first, and a world size."""


@pytest.fixture
def groups(one_rank):
    """One rank's."""
    everybody = dist.group.WORLD
    return {k: Group(key=k, ranks=(0,), control=everybody, data=everybody) for k in KEYS}


class Recorder:
    """What would have been written."""

    def block(self, recorded):
        self.steps = recorded.steps
        self.rows = [row for step in recorded.collectives for row in step]

    def note(self, _record):
        pass


@pytest.fixture
def recorded(groups, cuda, fake_device):
    """Runs one block of an arm over the group of a key, and tells what was recorded of it."""
    arms = SimpleNamespace(
        wire=lambda: [Message(0, 2**12), Message(0, 2**14)],
        wire_dtype=torch.float32,
        micro_steps=lambda _arm: 1,
        parameters=lambda _arm, _begins: [],
    )

    def run(arm, key):
        device, recorder = fake_device(cuda), Recorder()
        exchange = Exchange(device)
        exchange.reserve(2**16)
        runner = BlockRunner(
            device=device, groups=groups, exchange=exchange, recorder=recorder, collectives=["all_reduce"]
        )
        trial = Trial(world_size=2, hosts=1, batch=1)
        pairing = -key if key < 0 else 0
        block = Block(id=7, round=0, arm=arm, trial=trial, groups=((0,),), pairing=pairing)
        runner.run(block, arms, [2**12], steps=0, lead_in=0)
        return recorder

    return run


@pytest.mark.parametrize(("arm", "key"), [(PAIRS, -1), (PAIRS, -3), (REPLAY, 2), (FABRIC, 2)])
def test_a_row_keeps_the_key_of_its_group(recorded, arm, key):
    found = recorded(arm, key)
    assert {row.group for row in found.rows} == {key}
    begin, end = found.steps[0].begin_ns, found.steps[-1].end_ns
    for row in found.rows:
        assert begin <= row.launch_ns <= row.done_ns <= end


def test_so_does_one_message_alone(groups, cuda, fake_device):
    exchange = Exchange(fake_device(cuda))
    exchange.reserve(2**12)
    assert exchange.once(groups[-1], 2**12).group == -1
