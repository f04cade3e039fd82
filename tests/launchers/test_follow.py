"""A launch is followed to its end, whatever comes in between."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest

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
