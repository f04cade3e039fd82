"""A launch of a script: it ends, nothing is left of it, and its log says why it failed."""

import signal
import subprocess
import sys
import time

import pytest
from support.commands import planned
from support.processes import alive, wait_until

from scaling.launchers.follow import RUN_DIR, command_of, run_script, why
from scaling.launchers.launcher import Command
from scaling.launchers.torchrun import reaped
from scaling.records.paths import RunFolder

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


def shell(text):
    return Command(argv=reaped(("sh", "-c", text)), env={}, ranks=(0, 1))


DAEMON = "env -i setsid sh -c 'trap \"\" TERM HUP; echo $$ >daemon; sleep 300' >/dev/null 2>&1 & sleep 0.3; "
"""Starts what has neither the session nor the environment of its parent, nor a parent, and does not listen."""


def started(path):
    return int(path.read_text())


def test_a_script_that_ends_well_is_done(logs):
    assert run_script(shell("echo trained"), logs, 30).status == "done"
    assert logs.launcher_log.read_text() == "trained\n"


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("exit 0", "done", None),
        ("exec sleep 300", "timeout", "--time-limit"),
        ("kill -9 $$", "failed", "SIGKILL"),
    ],
)
def test_a_launch_ends_with_all_that_it_started(text, status, error, logs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    begin = time.monotonic()
    ended = run_script(shell(DAEMON + text), logs, 10 if error != "--time-limit" else 0.5)
    assert time.monotonic() - begin < 20
    assert ended.status == status
    assert error is None or error in ended.error
    assert not alive(started(tmp_path / "daemon"))


def test_a_launch_ends_with_the_program_that_started_it(tmp_path):
    code = (
        "import sys; from scaling.launchers.launcher import Command; from scaling.launchers.launcher import start; "
        "from scaling.launchers.torchrun import reaped; from scaling.records.paths import LaunchFolder; "
        "from pathlib import Path; "
        "start(Command(argv=reaped(('sh', '-c', sys.argv[1])), env={}), LaunchFolder(Path('.'), 0)).wait()"
    )
    ours = subprocess.Popen([sys.executable, "-c", code, DAEMON + "sleep 300"], cwd=tmp_path)
    wait_until(lambda: started(tmp_path / "daemon"), ours)
    ours.send_signal(signal.SIGKILL)
    ours.wait()
    wait_until(lambda: not alive(started(tmp_path / "daemon")), seconds=20)


@pytest.mark.parametrize(
    ("text", "error", "rank"),
    [
        (RAISED + TORCHRUN.format(code=1), "ValueError: no such data set: imagenet", 1),
        ("epoch 1\n" + TORCHRUN.format(code=-9), "rank 1 was ended by SIGKILL", 1),
        ("cannot start: no licence\n" + TORCHRUN.format(code=3), "cannot start: no licence", 1),
        (RAISED + f"[rank{'9' * 5000}]: odd\n[rank2]: odder\n", "ValueError: no such data set: imagenet", 1),
        (
            TORCHRUN.format(code=1).replace(" 1 (", f" {'9' * 5000} (") + TORCHRUN.format(code=-9),
            "rank 1 was ended by SIGKILL",
            1,
        ),
    ],
)
def test_the_cause_is_the_first_rank_s_own(logs, text, error, rank):
    logs.launcher_log.write_text(text)
    found = why(logs, 1, 2)
    assert (found.status, found.error, found.rank) == ("failed", error, rank)
    assert not any("ChildFailedError" in line for line in found.lines)


@pytest.mark.parametrize("topology", ["local", "emulated_pcie", "slurm_pcie"])
def test_every_launcher_runs_the_script_in_place_of_our_worker(tmp_path, topology):
    plan = planned(f"topology={topology}", "topology.device=cpu")
    folder = RunFolder(tmp_path)
    made = command_of(plan, folder, folder.log(0), 1, ("train.py", "--lr", "1"))
    lines = [made.argv, *(host["command"] for host in (made.network or {}).get("hosts", ()))]
    assert any(tuple(line[-3:]) == ("train.py", "--lr", "1") for line in lines)
    assert not any("scaling.worker" in line for line in lines)
    assert made.env[RUN_DIR] == str(tmp_path / "ranks-1")
