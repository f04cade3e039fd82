"""Wait for what other processes do, and tell which of them still run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

NOT_YET = (OSError, ValueError, KeyError, IndexError)
"""What reading a file raises while it is missing or half written."""


def wait_until(
    condition: Callable[[], object],
    process: subprocess.Popen[Any] | None = None,
    *,
    seconds: float = 60,
    every_s: float = 0.02,
) -> float:
    """Wait for a condition; return the seconds that it took. Fail after `seconds`, or once `process` has ended.

    A condition may raise NOT_YET, which means that it does not hold yet.
    """
    begin, raised = time.monotonic(), None
    while (waited := time.monotonic() - begin) < seconds:
        try:
            if condition():
                return waited
        except NOT_YET as error:
            raised = error
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended early with {process.returncode}: {process.communicate()}")
        time.sleep(every_s)
    raise AssertionError(f"did not come about within {seconds} s") from raised


def captured(argv: Sequence[Any], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; what it prints is kept as text. `options`: those of subprocess.run."""
    return subprocess.run(argv, capture_output=True, text=True, check=check, **options)


def user_namespaces() -> bool:
    """Whether a user may make network namespaces on this machine, which emulated hosts need."""
    try:
        return subprocess.run(["unshare", "-Urnm", "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


NO_NAMESPACES = "user namespaces are not to be had here (`unshare -Urnm true` fails)"
"""Why a test that needs them is skipped."""


def state(pid: int) -> str:
    """The letter for a process's state in /proc, such as R, S, T or Z."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0]


def alive(pid: int) -> bool:
    """Whether the process still runs; one that has ended and waits for its parent (a zombie) does not."""
    try:
        return state(pid) != "Z"
    except OSError:
        return False
