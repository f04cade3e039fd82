"""How far the doctor's long stages are is told as they go."""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from support.workloads import towards_zero

from scaling.records.checkup import SCHEMA, RankCheck
from scaling.worker.accelerator.accelerator import Cpu
from scaling.worker.checks.checkup import OTHERS_S, Checkup
from scaling.worker.session.control import Control


def test_a_word_before_every_pair():
    words = []
    session = SimpleNamespace(control=Control(dist.HashStore(), 0), world=1, say=words.append)
    doctor = SimpleNamespace(_session=session)
    for index in range(3):
        Checkup._turn(doctor, index)
    assert words == ["0 pairs done", "1 pairs done", "2 pairs done"]


def test_a_word_before_every_step_of_every_format_and_then_time_for_slower_ranks():
    words, noted = [], {}

    def build():
        torch.manual_seed(0)
        return towards_zero(torch.nn.Linear(4, 4), 4)

    doctor = SimpleNamespace(
        _build=build,
        _session=SimpleNamespace(say=lambda what, expected_s=None: words.append((what, expected_s))),
        _device=Cpu(),
        _spec=SimpleNamespace(seed=0),
        _trial=SimpleNamespace(batch=4),
        _record=RankCheck(schema=SCHEMA, rank=0, host=0, stage="", facts={}),
        _note=lambda **found: noted.update(found),
    )
    Checkup._parity(doctor, ("fp32",))
    said = [what for what, _ in words]
    assert len(said) == len(set(said))
    for name in ("fp64", "fp32"):
        for run in (1, 2):
            assert [f"{name}, run {run}, step {k}" in said for k in range(1, 5)] == [True] * 4
            assert f"{name}, run {run}, timed" in said
    assert said[-1] == "waiting for the others"
    assert words[-1][1] >= OTHERS_S
    assert noted["parity_left_out"] == {}
