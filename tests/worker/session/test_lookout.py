"""A rank that is told to end says where it was; one that forks does not stand in its children's way."""

import json
import signal
import sys
import time

import pytest
from support.commands import start_python
from support.processes import alive, wait_until

from scaling.records.paths import RunFolder

START = """
import os, sys, time
from pathlib import Path
from scaling.records.paths import RunFolder
from scaling.worker.session.stack_dump import watch
folder = RunFolder(sys.argv[1]).launch(0)
folder.path.mkdir(parents=True)
leave = watch(folder, 3, lambda: "warm-up of world size 4")
def stuck():
    print("ready", flush=True)
    {}
stuck()
"""


@pytest.fixture
def rank(tmp_path):
    """rank(code): a process that looks out and then does `code`."""
    started = []

    def start(code):
        process = start_python("-c", START.format(code), str(tmp_path))
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def stack_of(tmp_path):
    return json.loads(RunFolder(tmp_path).launch(0).stack(3).read_text())


def test_one_that_fails_as_it_is_told_to_end_says_where_it_stood(rank, tmp_path):
    """It was stopped, goes on, and finds its peers gone: it must not end before that is written."""
    process = rank("os.kill(os.getpid(), 15); leave(1)")
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    assert stack_of(tmp_path)["stack"][0].endswith(" in stuck")


def test_one_that_fails_by_itself_ends_at_once(rank, tmp_path):
    assert rank("leave(1)").wait(timeout=20) == 1
    assert not RunFolder(tmp_path).launch(0).stack(3).exists()


@pytest.mark.parametrize(
    "code", ["time.sleep(60)", "while True: pass", "os.kill(os.getpid(), 19); time.sleep(60)"]
)
def test_asleep_busy_or_stopped_it_says_where(rank, code, tmp_path):
    process = rank(code)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGTERM
    found = stack_of(tmp_path)
    assert (found["rank"], found["stage"], found["collective"]) == (3, "warm-up of world size 4", None)
    assert found["stack"][0].endswith(" in stuck")
    assert "Stack (most recent call first)" in err  # and faulthandler, whatever the interpreter is at


def test_it_dies_with_the_process_that_started_it(tmp_path):
    """As with a torchrun that is killed: even a stopped rank is gone."""
    starts = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    child = [sys.executable, "-c", START.format("os.kill(os.getpid(), 19)"), str(tmp_path)]
    parent = start_python("-c", starts, *child, stderr=None)
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.communicate()
    wait_until(lambda: not alive(child), seconds=20)


def test_a_forked_child_ends_on_sigterm(rank, tmp_path):
    process = rank(
        "child = os.fork()\n    if child == 0: time.sleep(60)\n    time.sleep(0.3)\n"
        "    os.kill(child, 15)\n    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)"
    )
    out, _ = process.communicate(timeout=20)
    assert (out, process.returncode) == ("-15\n", 0)
    assert not RunFolder(tmp_path).launch(0).stack(3).exists()
