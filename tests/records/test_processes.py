"""Work in other processes: in order, with the caller's errors, and gone when the caller is, however it ends."""

import operator
import os
import signal
import subprocess
import sys
import time

import pytest
from support.processes import alive

from scaling.records import processes as of_processes
from scaling.records.processes import Processes

CALLER = """
import signal, sys, time
from scaling.records.processes import Processes
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
with Processes(2) as processes:
    list(processes.each(time.sleep, [(0.5,), (0.5,)]))
    print(*(process.pid for process in processes._started()), flush=True)
    list(processes.each(time.sleep, [(60,), (60,)]))
"""
"""A script without a guard, which is what a user's script may look like."""


def ended(pids, within_s=20.0):
    """Whether all end in time."""
    deadline = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def pids(processes):
    return {process.pid for process in processes._started()}


def test_results_come_in_order():
    with Processes(2) as processes:
        assert list(processes.each(pow, [(k, 2) for k in range(9)])) == [k * k for k in range(9)]
        own = pids(processes)
        assert set(processes.each(os.getpid, [()] * 4)) <= own
    assert ended(own)


def test_a_task_is_made_shortly_before_its_turn():
    made = []

    def tasks():
        for k in range(50):
            made.append(k)
            yield (k,)

    with Processes(1) as processes:
        results = processes.each(abs, tasks())
        assert next(results) == 0
        assert len(made) < 10
        results.close()


def test_without_processes_the_caller_works_itself():
    with Processes(0) as processes:
        assert list(processes.each(os.getpid, [()])) == [os.getpid()]


def test_an_error_of_the_work_is_the_callers():
    with Processes(2) as processes:
        list(processes.each(abs, [(1,)]))
        own = pids(processes)
        with pytest.raises(ZeroDivisionError):
            list(processes.each(operator.truediv, [(1, 1), (1, 0), (1, 2)]))
    assert ended(own)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_work_of_a_killed_or_stopped_process_is_done_by_the_caller(how, monkeypatch):
    with Processes(2) as processes:
        list(processes.each(abs, [(1,), (2,)]))
        monkeypatch.setattr(of_processes, "ANSWER_S", 0.2)
        own = pids(processes)
        for pid in own:
            os.kill(pid, how)
        assert list(processes.each(pow, [(k, 2) for k in range(5)])) == [k * k for k in range(5)]
    assert ended(own)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_processes_end_with_their_caller(how):
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    pids = list(map(int, caller.stdout.readline().split()))
    assert len(pids) == 2
    os.kill(caller.pid, how)
    caller.wait(20)
    caller.stdout.close()
    assert ended(pids)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="from Python 3.11 on")
def test_nothing_is_imported_from_the_working_directory(tmp_path, monkeypatch):
    for name in ("multiprocessing", "pickle", "selectors"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')\nraise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    with Processes(1) as processes:
        assert list(processes.each(operator.add, [(1, 2)])) == [3]
    assert not (tmp_path / "imported").exists()
