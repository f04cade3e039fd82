"""The process of a launch: how it is started, and how it and all that it started are ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator

from scaling.launchers.launcher import Command
from scaling.reading import open_to_write
from scaling.records.paths import LaunchFolder

END_S, GONE_S = 12, 3
"""How long a launch may take to end after SIGTERM, and after a second one, before SIGKILL (launch/reaper.py)."""


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
    came: list[int] = []
    with contextlib.ExitStack() as undo:  # goes on where a handler that is back already raises
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.signal(number, lambda number, _frame: came.append(number))
            undo.callback(signal.signal, number, before)
        yield
    for arrived in came:
        signal.raise_signal(arrived)


def end(process: subprocess.Popen[bytes]) -> None:
    """Send SIGTERM, once more, then SIGKILL, to the launch's process group. A second Ctrl-C skips a wait."""
    try:
        for wait_s in (END_S, GONE_S):
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                if process.poll() is None:
                    _signal(process, signal.SIGTERM)
                    process.wait(timeout=wait_s)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _die_with_parent() -> None:
    """In the child: SIGTERM when the program that started it dies, even by SIGKILL (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
