"""How a benchmark ends where somebody stops it: in order, in one line, with the status of a shell's Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

INTERRUPTED = 130
GRACE_S = 15.0
"""Ctrl-C goes to what was started as well: it gets so long to end in order before it is told to, then killed."""


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with what `main` returns, or with 130 and one line on stderr after Ctrl-C or SIGTERM."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell has its background jobs ignore the first
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
    """As subprocess.run with the output captured; after Ctrl-C, or too long, what was started is over on return."""
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
    """Wait until a process that was interrupted is over; within three times GRACE_S it is."""
    for tell in (None, process.terminate, process.kill):
        if tell is not None:
            tell()
        try:
            process.communicate(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            continue
        return
