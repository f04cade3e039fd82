"""Run programs, and end an interrupted benchmark cleanly, with one line and the shell's exit status for Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

INTERRUPTED = 130
GRACE_S = 15.0
"""Wait after Ctrl-C before SIGTERM, and after SIGTERM before SIGKILL."""


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with what `main` returns, or with 130 and one line on stderr after Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # background jobs of a shell ignore SIGINT by default
        signal.signal(number, signal.default_int_handler)
    try:
        status = main()
    except KeyboardInterrupt:
        print(f"{Path(sys.argv[0]).stem}: interrupted", file=sys.stderr)
        status = INTERRUPTED
    sys.exit(status)


def run(
    command: Sequence[str],
    *,
    check: bool = False,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run with captured output, but after Ctrl-C or a timeout wait for the program to end."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace", env=env)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except BaseException:
        end(process)
        raise
    if check and process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, output, errors)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def end(process: subprocess.Popen[Any]) -> None:
    """Wait until an interrupted process has ended, at most three times GRACE_S."""
    for tell in (None, process.terminate, process.kill):
        if tell is not None:
            tell()
        try:
            process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        return
