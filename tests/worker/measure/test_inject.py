"""Faults act on their rank, in the blocks that are meant, and only there."""

import time

import pytest
import torch
from support.processes import state, wait_until

from scaling.settings.plan import Trial
from scaling.settings.run import Inject
from scaling.settings.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, FABRIC, PAIRS, PLAIN, PROBE, REPLAY, Block
from scaling.worker.measure.inject import Faults


def block(arm=PLAIN, world_size=2):
    return Block(id=0, round=0, trial=Trial(world_size=world_size, hosts=1, batch=1), arm=arm)


def stalled(faults, what="compute"):
    begin = time.monotonic()
    getattr(faults, what)()
    return time.monotonic() - begin > 0.02


@pytest.mark.parametrize("arm", [PLAIN, PROBE, BARE_ALL, DDP_SOLO])
@pytest.mark.parametrize("what", ["input", "compute", "optimizer", "host"])
def test_a_stall_acts_in_its_phase(arm, what):
    faults = Faults(Inject(**{f"{what}_ms": 25}), rank=0, first_on_host=True)
    faults.begin(block(arm))
    assert {w for w in ("input", "compute", "optimizer", "host") if stalled(faults, w)} == {what}
    faults.end()
    assert not stalled(faults, what)


@pytest.mark.parametrize(("arm", "stalls"), [(PLAIN, True), (DDP_SOLO, True), (BARE_ONE, False)])
def test_a_stall_in_backward_acts_before_the_first_gradient(arm, stalls):
    faults = Faults(Inject(backward_ms=25), rank=0, first_on_host=True)
    faults.begin(block(arm))
    weight = torch.ones(2, requires_grad=True)
    loss, seen = weight.sum(), []
    weight.register_hook(lambda _gradient: seen.append(time.monotonic()))
    faults.backward(loss)
    begin = time.monotonic()
    loss.backward()
    assert (seen[0] - begin > 0.02) == stalls


@pytest.mark.parametrize("arm", [BARE_ONE, REPLAY, FABRIC, PAIRS])
def test_the_baseline_and_the_exchanges_stay_clean(arm):
    faults = Faults(Inject(compute_ms=25), rank=0, first_on_host=True)
    faults.begin(block(arm))
    assert not stalled(faults)


def test_nothing_acts_at_world_size_one():
    faults = Faults(Inject(compute_ms=25, wrong_no_sync=True), rank=0, first_on_host=True)
    faults.begin(block(world_size=1))
    assert not stalled(faults)
    assert not faults.wrong_no_sync


def test_a_stall_is_one_rank_s():
    inject = Inject(rank=1, compute_ms=25)
    ranks = [Faults(inject, rank=rank, first_on_host=True) for rank in range(2)]
    for faults in ranks:
        faults.begin(block())
    assert [stalled(faults) for faults in ranks] == [False, True]


def test_a_failure_comes_after_so_many_blocks():
    faults = Faults(Inject(rank=1, fail_after_blocks=2), rank=1, first_on_host=True)
    faults.begin(block())
    faults.begin(block())
    with pytest.raises(RuntimeError, match="after 2 blocks"):
        faults.begin(block())


def test_busy_processes_run_in_blocks_and_rest_between():
    faults = Faults(Inject(contention=1), rank=0, first_on_host=True)
    (process,) = faults._busy
    try:
        wait_until(lambda: state(process.pid) == "T", seconds=10)
        faults.begin(block())
        wait_until(lambda: state(process.pid) == "R", seconds=10)
        faults.end()
        wait_until(lambda: state(process.pid) == "T", seconds=10)
    finally:
        faults.close()
    assert process.returncode is not None


def test_only_the_first_rank_of_a_host_makes_them():
    assert Faults(Inject(contention=2), rank=1, first_on_host=False)._busy == []
