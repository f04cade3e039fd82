"""The workers of a launch in the kernel's list of processes: real processes with a worker's command line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scaling.launchers.failure.evidence import Roll, find


@pytest.fixture
def worker(launch):
    """worker(rank): a process that says that it is one; ended with the test."""
    started = []

    def start(rank, index=0, code="print(flush=True); input()"):
        told = ["-m", "scaling.worker", str(launch.path.parent.parent), str(index)]
        process = subprocess.Popen(
            [sys.executable, "-c", code, *told],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ if rank is None else {**os.environ, "RANK": str(rank)},
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_only_this_launchs_are_found(launch, worker):
    worker(0), worker(1), worker(0, index=1)
    assert sorted(found.rank for found in find(launch)) == [0, 1]


def test_a_process_of_the_same_words_that_is_no_rank_is_none(launch, worker, monkeypatch):
    """srun's command line ends in the worker's."""
    monkeypatch.delenv("RANK", raising=False)
    worker(None)
    assert find(launch) == []


def test_one_that_ended_is_missing_while_another_goes_on(launch, worker):
    roll, first, second = Roll(launch), worker(0), worker(1)
    roll.call()
    assert roll.missing() == frozenset()
    second.communicate()
    assert roll.missing() == {1}
    first.communicate()
    assert roll.missing() == frozenset(), "all ended: no one of them is missing"


def test_what_a_rank_forks_is_not_the_rank(launch, worker):
    """A pool of processes that prepares data, say; they have its command line, and end when they are done."""
    roll = Roll(launch)
    worker(0)
    rank = worker(1, code="import os; os.fork() and (print(flush=True), os.wait()); input()")
    (child,) = {found.pid for found in find(launch) if found.rank == 1} - {rank.pid}
    roll.call()
    os.kill(child, signal.SIGKILL)
    while Path(f"/proc/{child}").exists():
        time.sleep(0.01)
    assert roll.missing() == frozenset()


def test_one_that_was_seen_before_the_others_came_counts(launch, worker):
    roll, early = Roll(launch), worker(1)
    roll.call()
    early.communicate()
    worker(0)
    roll.call()
    assert roll.missing() == {1}
