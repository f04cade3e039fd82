"""The process of a launch: how it is started, and how it and all that it started are ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from types import FrameType

from scaling.launchers.launcher import Command
from scaling.reading import open_to_write
from scaling.records.paths import LaunchFolder

END_S = 8
"""How long a launch may take to end after SIGTERM, before SIGKILL."""


def start(command: Command, launch: LaunchFolder) -> subprocess.Popen[bytes]:
    """Start a launch in a process group of its own, with its output in the launch's log."""
    with open_to_write(launch.launcher_log, append=True) as log:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.env},
            cwd=command.cwd,
            start_new_session=True,  # so that Ctrl-C at the terminal reaches only this process, which ends the launch
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # safe beside other threads: it only calls prctl
        )


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP until the child has started."""
    came: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    holding = True

    def pass_on(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def take(number: int, frame: FrameType | None) -> None:
        if holding:
            came.append((number, frame))
        else:  # the other signal's handler raised before this one was put back
            pass_on(number, frame)

    try:
        for number in before:
            signal.signal(number, take)
        yield
    finally:
        holding = False
        for number, handler in before.items():
            signal.signal(number, handler)
    for arrived in came:
        pass_on(*arrived)


def end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, then SIGKILL, to the process group of the launch. A second Ctrl-C skips the wait."""
    try:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            process.wait(timeout=END_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _die_with_parent() -> None:
    """In the child: SIGTERM when the program that started it dies, even by SIGKILL (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
