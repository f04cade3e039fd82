"""A run's settings as W&B's config: flat, under the names of their overrides."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from scaling import codec
from scaling.analysis.results import RunInfo
from scaling.cases import batches
from scaling.plan import Plan, Trial
from scaling.secrets import is_secret
from scaling.store import RunFolder

VERSIONS = ("python", "torch", "cuda", "cudnn", "nccl", "driver", "kernel")
MACHINE = ("hostname", "cpu", "cores", "device_name", "device_memory_bytes")
"""Of what rank 0 wrote down about itself."""

Json = dict[str, Any]


def of_run(folder: RunFolder, plan: Plan, run: RunInfo) -> Json:
    """What all world sizes share: the spec, versions, the machine, the commit that was measured."""
    spec = codec.encode(plan.spec)
    del spec["tracking"], spec["world_sizes"], spec["batch_per_rank"], spec["global_batch"]
    spec["env"] = {k: v for k, v in spec["env"].items() if not is_secret(k)}
    found = _environment(folder)
    spec["versions"] = {"scaling": plan.version} | {name: found.get(name) for name in VERSIONS}
    spec["machine"] = {name: found.get(name) for name in MACHINE}
    spec["git"] = {"commit": plan.commit or None}
    flat = {k.removesuffix(".name"): v for k, v in _dotted(spec)}
    return flat | {"run": plan.id, "device": run.device, "backend": run.backend, "launches": run.launches}


def of_trial(plan: Plan, trial: Trial) -> Json:
    """What one world size has of its own."""
    spec = plan.spec
    found: Json = {"world_size": trial.world_size, "hosts": trial.hosts}
    if not spec.by_case or (batches(spec) == (trial.batch,) and not spec.batch_max):
        found["batch_per_rank"] = trial.batch  # of cases: where all of them have it
    return found | ({"global_batch": spec.global_batch} if spec.mode == "strong" else {})


def _environment(folder: RunFolder) -> Json:
    """What rank 0 of the last launch wrote down, where it did."""
    try:
        return dict(json.loads(folder.launches()[-1].env(0).read_text(encoding="utf-8")))
    except (OSError, ValueError, IndexError):
        return {}


def _dotted(tree: Json, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
