"""The process of a launch: how it is started, and how it and all that it started are ended.

Ask a worker process of its own: a question as JSON on its input, an answer on its output.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeVar

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.launchers.launcher import Command
from scaling.reading import open_to_write
from scaling.records import files
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


Answer = TypeVar("Answer")


class TooLongError(Exception):
    """There was no answer within the limit."""


def answer(module: str, request: Any, kind: type[Answer], *, what: str, limit_s: float) -> Answer:
    """The answer of `python -m module` to `request`, which it gets as JSON; errors call the request `what`.

    TooLongError after `limit_s`; InputError with its last line where it ends with status 2; ScalingError without an
    answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(files.encode(request)),
            capture_output=True,
            text=True,
            errors="replace",  # a library may print anything
            timeout=limit_s,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path(), "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise TooLongError from error
    try:
        return files.decode(kind, json.loads(done.stdout))
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if lines and done.returncode == InputError.exit_code:
            raise InputError(lines[-1]) from None
        reason = lines[-1] if lines and done.returncode >= 0 else _ended(done.returncode)
        raise ScalingError(f"{what} gave no answer: {reason}") from None


def _ended(status: int) -> str:
    """How a process ended, by its exit status."""
    if status >= 0:
        return f"it ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    memory = ", as the kernel does where memory runs out" if -status == signal.SIGKILL else ""
    return f"it was ended by {name}{memory}"
