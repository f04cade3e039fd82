"""Ask a worker process of its own: a question as JSON on its input, an answer on its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, TypeVar

from scaling import resources
from scaling.errors import ScalingError
from scaling.records import codec

Answer = TypeVar("Answer")


class TooLongError(Exception):
    """There was no answer within the limit."""


def answer(module: str, asked: Any, kind: type[Answer], *, what: str, limit_s: float) -> Answer:
    """What `python -m module` makes of `asked`, which is `what`. TooLongError; ScalingError without an answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=json.dumps(codec.encode(asked)),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path(), "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired as error:
        raise TooLongError from error
    try:
        return codec.decode(kind, json.loads(done.stdout))
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1] if lines else f"it ended with {done.returncode}"
        raise ScalingError(f"{what} gave no answer: {said}") from None
