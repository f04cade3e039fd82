"""Ask a worker process of its own: a question as JSON on its input, an answer on its output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any, TypeVar

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.records import files

Answer = TypeVar("Answer")


class TooLongError(Exception):
    """There was no answer within the limit."""


def answer(module: str, asked: Any, kind: type[Answer], *, what: str, limit_s: float) -> Answer:
    """What `python -m module` makes of `asked`, which is `what`.

    TooLongError; InputError with its last line where it ends with status 2; ScalingError without an answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(files.encode(asked)),
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
        said = lines[-1] if lines and done.returncode >= 0 else _ended(done.returncode)
        raise ScalingError(f"{what} gave no answer: {said}") from None


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
