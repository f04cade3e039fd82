"""A launch is followed to its end, whatever comes in between."""

import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
from support.commands import start_python

from scaling.launchers.follow import follow
from scaling.launchers.launcher import Command

LIMITS = SimpleNamespace(step_timeout_s=10, start_timeout_s=300)
SLEEP = Command(argv=("sleep", "60"), env={})


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_a_launch_is_being_started_leaves_none_behind(launch, monkeypatch, when):
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        if when == "before":
            os.kill(os.getpid(), signal.SIGINT)
        started.append(popen(*arguments, **options))
        if when == "after":
            os.kill(os.getpid(), signal.SIGINT)
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has jobs behind it ignore it
    try:
        outcome = follow(SLEEP, launch, LIMITS, lambda _: None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (outcome.status, outcome.error) == ("interrupted", "interrupted by Ctrl-C")
    assert [process.returncode for process in started] == [-signal.SIGTERM]


def test_a_signal_whose_handler_raises_leaves_the_other_one_s_in_place(launch, monkeypatch):
    """Ctrl-C comes between the moment in which its own handler is back and the moment in which SIGTERM's is."""
    told, install = [], signal.signal
    before = {
        signal.SIGINT: install(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: install(signal.SIGTERM, lambda number, _: told.append(number)),
    }

    def interrupted(number, handler):
        replaced = install(number, handler)
        if number == signal.SIGINT and handler is signal.default_int_handler:
            os.kill(os.getpid(), signal.SIGINT)
        return replaced

    monkeypatch.setattr(signal, "signal", interrupted)
    try:
        outcome = follow(SLEEP, launch, LIMITS, lambda _: None)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            install(number, handler)
    assert outcome.status == "interrupted"
    assert told == [signal.SIGTERM]


WAITING = """
trap 'echo "srun: Cancelled pending job step with signal 15"; exit 1' TERM
echo "srun: Job 7 step creation temporarily disabled, retrying (Requested nodes are busy)"; echo
sleep 60 &
wait
"""


def test_a_launcher_that_waited_for_nodes_says_so(launch):
    limits = SimpleNamespace(step_timeout_s=2, start_timeout_s=2)
    outcome = follow(Command(argv=("sh", "-c", WAITING), env={}), launch, limits, lambda _: None)
    assert outcome.status == "timeout"
    assert outcome.error.endswith(
        "no rank says why; the launcher's last words: srun: Job 7 step creation temporarily disabled, retrying "
        "(Requested nodes are busy)"
    )


FOLLOWING = """
import sys
from pathlib import Path
from types import SimpleNamespace
from scaling.launchers.follow import follow
from scaling.launchers.launcher import Command
from scaling.records.paths import RunFolder

limits = SimpleNamespace(step_timeout_s=6, start_timeout_s=6)
command = Command(argv=("sleep", "11"), env={})
folder = RunFolder(Path(sys.argv[1])).launch(0)
outcome = follow(command, folder, limits, lambda _: None, lambda: print("started", flush=True))
print(outcome.status, outcome.error)
"""


@pytest.mark.slow
def test_the_time_of_a_job_that_is_suspended_is_no_silence(launch, tmp_path):
    """As with `scontrol suspend` and `docker pause`: this machine's clock goes on."""
    with start_python("-c", FOLLOWING, str(tmp_path)) as process:
        assert process.stdout.readline() == "started\n"
        time.sleep(1)
        process.send_signal(signal.SIGSTOP)
        time.sleep(7)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0] == "done None\n"
