"""A process group that is destroyed and made again has a probe again, also where its ranks are others."""

import sys
from pathlib import Path

import pytest
from support.commands import environment
from support.processes import captured

from scaling.worker.probe.agreement import _decide

TAKES_S = 100
"""Less than the two minutes after which a rank gives up one that does not come."""


@pytest.mark.slow
def test_each_group_that_is_made_again_agrees_anew(tmp_path):
    program = str(Path(__file__).with_name("remade.py"))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    env = environment({"OMP_NUM_THREADS": "1"})
    done = captured([*launch, program, tmp_path], env=env, timeout=TAKES_S)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "scaling: Probe:" in line]
    assert all("reports the run" in line or "nothing was recorded" in line for line in said)
    found = sorted(done.stdout.split("\n"))
    expected = [(0, 0), (0, 1), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert [line for line in found if line] == [f"{turn} {rank} {tmp_path}/{turn}" for turn, rank in expected]
    for turn, members in enumerate([2, 2, 3]):
        files = sorted(path.name for path in (tmp_path / str(turn)).glob("launches/0/rank-*.jsonl"))
        assert files == [f"rank-{rank}.jsonl" for rank in range(members)]


def test_ranks_that_train_apart_and_begin_at_once_have_launches_of_their_own(tmp_path):
    assert [_decide(tmp_path, [["host", "kernel"]])["launch"] for _ in range(3)] == [0, 1, 2]
