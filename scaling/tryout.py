"""One step of a model in a process of its own, before anything is launched."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from scaling import resources
from scaling.errors import InputError
from scaling.plan import Plan

TRY_S = 120
"""A custom model's factory and first step may take so long when it is tried before a launch."""


def try_model(plan: Plan, module: str = "scaling.worker.tryout") -> None:
    """Give `module` the model on its standard input; InputError with its last line when it fails."""
    model = plan.spec.model
    document = json.dumps({"target": model.target, "args": model.args, "batch": plan.trials[0].batch})
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=document,
            capture_output=True,
            text=True,
            timeout=TRY_S,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path()},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"model._target_={model.target}: its first step took longer than {TRY_S} s"
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(
            lines[-1] if lines else f"model._target_={model.target}: failed with {done.returncode}"
        )
