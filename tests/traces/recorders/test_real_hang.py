"""Real hangs on Gloo, dumped by the ranks themselves: the rank that left the way, and how, is named each time."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
import support
import torch

from scaling.traces import kinds
from scaling.traces.recorders.hang import flight_recorder

TIMES = 10
PROGRAM = Path(support.__path__[0]) / "hanging.py"
NAMED = {"skip": "skipped", "late": "missing", "size": "size", "order": "order"}


@pytest.fixture
def hang(tmp_path):
    """hang(fault) -> for each of TIMES hangs: its folder, and the rank that left the way."""

    def run(fault):
        chosen = random.Random(fault)
        cases, arguments = [], []
        for k in range(TIMES):
            world = chosen.choice((2, 3))
            odd, at = chosen.randrange(world), chosen.randrange(2, 6)
            cases.append((tmp_path / f"{k}", odd))
            arguments += [str(tmp_path / f"{k}"), str(world), fault, str(odd), str(at)]
        subprocess.run(
            [sys.executable, str(PROGRAM), *arguments], timeout=400, check=True, capture_output=True
        )
        return cases

    return run


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("fault", NAMED)
def test_the_rank_and_its_fault_are_named_each_time(hang, fault):
    if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace"):
        pytest.skip("this torch has no flight recorder for Gloo")
    right = []
    for folder, odd in hang(fault):
        for where in (folder, folder / "json"):
            kind, files = kinds.find([str(where)] if where.name == "json" else map(str, where.glob("nccl*")))
            assert kind == kinds.FLIGHT
            (found,) = flight_recorder(files).document["faults"]
            right.append((found["what"], found["ranks"], "all_reduce of [1000]" in found["collective"]))
        assert right[-2:] == [(NAMED[fault], [odd], True)] * 2, folder
    assert len(right) == 2 * TIMES
