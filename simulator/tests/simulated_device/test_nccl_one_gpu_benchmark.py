"""benchmarks/nccl_one_gpu.py on the simulated accelerator: it trains, analyses and judges as on a GPU."""

import json
import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.processes import captured

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_one_part_runs_whole_and_the_late_rank_is_named():
    program = [sys.executable, ROOT / "benchmarks/nccl_one_gpu.py", "--simulated"]
    done = captured([*program, "--only", "resnet50-ddp-default"], env=environment(), timeout=500)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["where"], told["missed"], told["left_out"]) == ("simulated", [], []), (
        done.stdout + done.stderr
    )
    assert done.returncode == 0
    assert "rank 1, input, 20.0 ms" in done.stdout
