"""A launch of a script: it ends, nothing is left of it, and its log says why it failed."""

from __future__ import annotations

import time

import pytest

from scaling.config.compose import requests
from scaling.launchers.launcher import Command
from scaling.launchers.script import MARK, RUN_DIR, command_of, processes_of, run_script, why
from scaling.records.paths import RunFolder
from scaling.settings.plan import make_plan

TORCHRUN = """\
E1123 22:01:42.068000 20700 api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 20708) of binary: python
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 20707)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_22:01:41
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 20708)
"""
RAISED = """\
hello
[rank0]: Traceback (most recent call last):
[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:64745
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 6, in <module>
[rank1]: ValueError: no such data set: imagenet
W1123 22:01:41.952000 20700 api.py:1028] Sending process 20707 closing signal SIGTERM
"""


@pytest.fixture
def logs(tmp_path):
    found = RunFolder(tmp_path).log(3)
    found.path.mkdir(parents=True)
    return found


def shell(logs, text):
    return Command(argv=("sh", "-c", text), env={MARK: str(logs.path.absolute())})


def test_a_script_that_ends_well_is_done(logs):
    assert run_script(shell(logs, "echo trained"), logs, 30).status == "done"
    assert logs.launcher_log.read_text() == "trained\n"


def test_a_launch_ends_at_its_limit_with_all_that_it_started(logs):
    begin = time.monotonic()
    ended = run_script(shell(logs, "setsid sleep 300 & sleep 300"), logs, 0.3)
    assert time.monotonic() - begin < 20
    assert ended.status == "timeout"
    assert "--time-limit" in ended.error
    assert processes_of(str(logs.path.absolute())) == []


@pytest.mark.parametrize(
    ("text", "error", "rank"),
    [
        (RAISED + TORCHRUN.format(code=1), "ValueError: no such data set: imagenet", 1),
        ("epoch 1\n" + TORCHRUN.format(code=-9), "rank 1 was ended by SIGKILL", 1),
        ("cannot start: no licence\n" + TORCHRUN.format(code=3), "cannot start: no licence", 1),
    ],
)
def test_the_cause_is_the_first_rank_s_own(logs, text, error, rank):
    logs.launcher_log.write_text(text)
    found = why(logs, 1)
    assert (found.status, found.error, found.rank) == ("failed", error, rank)
    assert not any("ChildFailedError" in line for line in found.lines)


@pytest.mark.parametrize("topology", ["local", "emulated_pcie", "slurm_pcie"])
def test_every_launcher_runs_the_script_in_place_of_our_worker(tmp_path, topology):
    (asked,) = requests("plan", [f"topology={topology}", "topology.device=cpu"]).items
    plan = make_plan(asked.spec, run_id="20260101-000000-abc", created="", version="")
    folder = RunFolder(tmp_path)
    made = command_of(plan, folder, folder.log(0), 1, ("train.py", "--lr", "1"))
    lines = [made.argv, *(host["command"] for host in (made.network or {}).get("hosts", ()))]
    assert any(tuple(line[-3:]) == ("train.py", "--lr", "1") for line in lines)
    assert not any("scaling.worker" in line for line in lines)
    assert made.env[RUN_DIR] == str(tmp_path / "ranks-1")
