"""The overrides of `scaling predict`, checked against the run and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scaling.config.schema import Composed, check, check_batches, check_value, freeze, world_sizes_to
from scaling.config.topology import freeze_topology
from scaling.errors import InputError
from scaling.settings import run as spec
from scaling.settings.plan import Plan
from scaling.settings.topology import BACKEND_OF, GPU, Topology

KNOWN = (
    "world_sizes",
    "topology",
    "ddp.bucket_cap_mb",
    "accumulation_steps",
    "batch_per_rank",
    "global_batch",
    "compute_scale",
    "gradient_compression",
    "without_straggler",
)
"""What a prediction can change."""
PLACES = ("cluster.", "cost.")
"""Where a topology is found and what it costs: keys that change no prediction."""
JOINS = (
    "topology.levels",
    "topology.link.latency_us",
    "topology.link.rate",
    "topology.link.share",
    "topology.placement",
    "topology.ranks_per_host",
)
"""Keys that decide how ranks are joined."""


def to_whatif(config: Composed, base: Composed, plan: Plan, overrides: Sequence[str] = ()) -> spec.WhatIf:
    """Check the overrides against the run. `base` is the run's own config, `config` the same with `overrides`."""
    changes = _differences(config, base)
    for key in changes:
        if not any(key == prefix or key.startswith(prefix + ".") for prefix in KNOWN):
            raise InputError(
                f"{key}: what it changes cannot be predicted, only measured (scaling run); "
                f"predict takes {', '.join(KNOWN)}"
            )
    measured, steps, sizes = plan.spec, config.accumulation_steps, config.world_sizes
    check_value(spec.Spec, "accumulation_steps", steps, "accumulation_steps")
    check(spec.Ddp, config.ddp, "ddp")
    asked = freeze(
        spec.WhatIf,
        config,
        changes=tuple(overrides),
        world_sizes=measured.world_sizes
        if sizes is None
        else world_sizes_to(spec.WORLD_SIZE_MAX, sizes, such_as="[2,4,8]"),
        topology=_topology(config.topology, measured.topology),
        elsewhere=any(key.startswith(JOINS) for key in changes),
        bucket_cap_mb=config.ddp.bucket_cap_mb if "ddp.bucket_cap_mb" in changes else None,
        accumulation=steps if "accumulation_steps" in changes else None,
        global_batch=config.global_batch or measured.global_batch,
    )
    key, _ = measured.batch_setting
    check_batches(key, getattr(asked, key), asked.world_sizes, steps)
    return asked


def _topology(config: Composed, measured: Topology) -> Topology:
    """The topology that was asked for, on any machine: this one need not have its devices."""
    check(Topology, config, "topology")
    ranks = config.ranks_per_host
    if ranks is None and config.name != measured.name:
        raise InputError(
            f"topology={config.name}: how many ranks a host has depends on the machine; "
            "a number is expected, such as topology.ranks_per_host=8"
        )
    # Links within a host are those of GPUs, where a topology does not say what its ranks run on.
    elsewhere = bool(config.levels) and config.name != measured.name
    device, backend = (GPU, BACKEND_OF[GPU]) if elsewhere else (measured.device, measured.backend)
    return freeze_topology(
        config,
        ranks_per_host=measured.ranks_per_host if ranks is None else ranks,
        device=device if config.device == "auto" else config.device,
        backend=backend if config.backend == "auto" else config.backend,
    )


def _differences(config: Composed, base: Composed) -> list[str]:
    ours, theirs = _flat(dataclasses.asdict(config)), _flat(dataclasses.asdict(base))
    changed = [key for key, value in ours.items() if key not in theirs or theirs[key] != value]
    return [key for key in changed if not key.startswith(PLACES)]


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in node.items():
        inside = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return flat
