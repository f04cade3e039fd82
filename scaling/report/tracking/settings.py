"""A run's settings as W&B's config: flat, under the names of their overrides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scaling.analysis.results import RunInfo
from scaling.records import codec
from scaling.records.launch import Environment
from scaling.spec.cases import batches
from scaling.spec.environment import MACHINE, VERSIONS, is_secret
from scaling.spec.plan import Plan, Trial

Json = dict[str, Any]


def of_run(environment: Environment | None, plan: Plan, run: RunInfo) -> Json:
    """What all world sizes share: the spec, versions, the machine, the commit that was measured.

    `environment`: what stands for the run's machine (`Launches.environment`); None where it is not known.
    """
    spec = codec.encode(plan.spec)
    del spec["tracking"], spec["world_sizes"], spec["batch_per_rank"], spec["global_batch"]
    spec["env"] = {k: v for k, v in spec["env"].items() if not is_secret(k)}
    found = environment.facts if environment else {}
    spec["versions"] = {"scaling": plan.version} | {name: found.get(name) for name in VERSIONS}
    spec["machine"] = {name: found.get(name) for name in ("hostname", *MACHINE, "device_memory_bytes")}
    spec["git"] = {"commit": plan.commit or None}
    flat = {k.removesuffix(".name"): v for k, v in _dotted(spec)}
    return flat | {"run": plan.id, "device": run.device, "backend": run.backend, "launches": run.launches}


def of_trial(plan: Plan, trial: Trial) -> Json:
    """What only one world size has."""
    spec = plan.spec
    found: Json = {"world_size": trial.world_size, "hosts": trial.hosts}
    if not spec.by_case or (batches(spec) == (trial.batch,) and not spec.batch_max):
        found["batch_per_rank"] = trial.batch  # a run by cases has one only where all cases have the same
    return found | ({"global_batch": spec.global_batch} if spec.mode == "strong" else {})


def _dotted(tree: Json, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
