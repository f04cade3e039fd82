"""One step of a model in a process of its own, before anything is launched."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from scaling import resources
from scaling.codec import encode
from scaling.errors import InputError
from scaling.plan import Plan
from scaling.spec import Spec

TRY_S = 120
"""A custom model's factory and first step may take so long when it is tried before a launch."""
COMPILED = 5
"""Times as long, where it has to be compiled first."""


def needs_trying(spec: Spec) -> bool:
    """Whether there is something in it that is not ours, or that may find nothing to act on."""
    ours = spec.model.target.startswith("scaling.worker.models.") and spec.data.target is None
    return not ours or spec.compile or spec.channels_last or spec.checkpointing or spec.fused_optimizer


def try_model(plan: Plan, module: str = "scaling.worker.tryout") -> None:
    """Give `module` the spec on its standard input; InputError with its last line when it fails."""
    spec, model = plan.spec, plan.spec.model
    limit_s = TRY_S * (COMPILED if spec.compile else 1)
    document = json.dumps({"spec": encode(spec), "batch": plan.trials[0].batch})
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=document,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path()},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"model._target_={model.target}, data={spec.data.name}: the first step took longer than {limit_s} s"
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1] if lines else f"model._target_={model.target}: failed with {done.returncode}"
        pixels = spec.data.args.get("image"), model.args.get("image")
        if None not in pixels and pixels[0] != pixels[1]:
            said += f" (data.image={pixels[0]} beside model.image={pixels[1]})"
        raise InputError(said)
