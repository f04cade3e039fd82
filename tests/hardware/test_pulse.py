"""What the ranks of a host have done, read from the system while they run."""

import subprocess

import pytest
from support.commands import start_python
from support.processes import wait_until

from scaling.hardware.telemetry import RankWatch

RANK = """
import subprocess, sys, time
from scaling.worker.session.progress import beat, share
share()
for _ in range(3):
    beat()
work = "x = 0\\nwhile True: x += 1"
if sys.argv[1] == "works":
    worker = subprocess.Popen([sys.executable, "-c", work])  # as a data worker does
print("ready", flush=True)
sys.stdin.readline()
if sys.argv[1] == "works":
    worker.kill()
    worker.wait()
"""


@pytest.fixture
def ranks():
    """ranks(*arguments): processes as torchrun starts them, as children of this one; returns their ids."""
    running = []

    def start(*arguments):
        for rank, argument in enumerate(arguments):
            env, pipes = {"RANK": str(rank)}, {"stdin": subprocess.PIPE, "stderr": None}
            running.append(start_python("-c", RANK, argument, env=env, **pipes))
        for process in running:
            assert process.stdout.readline() == "ready\n"
        return [process.pid for process in running]

    yield start
    for process in running:
        process.communicate("\n")


def test_a_rank_s_beats_and_the_processor_time_of_its_children_are_seen(ranks):
    first, _ = ranks("waits", "works")
    host = RankWatch(first, "scaling-beats")
    begin = host.pulse()
    assert set(begin) == {0, 1}
    assert {one.beats for one in begin.values()} == {3}
    wait_until(lambda: host.pulse()[1].cpu_s > begin[1].cpu_s + 0.2)
    assert host.pulse()[0].cpu_s <= begin[0].cpu_s + 0.05


def test_a_rank_that_ends_meanwhile_leaves_the_others_their_pulse(ranks, monkeypatch):
    first, second = ranks("waits", "waits")
    host = RankWatch(first, "scaling-beats")
    read = host._text

    def text(pid, name):
        if pid == second:
            raise ProcessLookupError
        return read(pid, name)

    monkeypatch.setattr(host, "_text", text)
    assert set(host.pulse()) == {0}


def test_a_rank_that_shares_no_memory_has_no_beats(ranks):
    (first,) = ranks("waits")
    assert RankWatch(first, "another-name").pulse()[0].beats is None
