"""The overrides of `scaling predict`, checked against the run and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scaling.config.schema import Composed, ascending, check, check_batches, check_value
from scaling.config.topology import FOUND, freeze_topology
from scaling.errors import InputError
from scaling.settings import run as spec
from scaling.settings.plan import Plan
from scaling.settings.topology import BACKEND_OF, Topology

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
    for name in ("batch_per_rank", "accumulation_steps"):
        check_value(spec.Spec, name, getattr(config, name), name)
    check(spec.Ddp, config.ddp, "ddp")
    for name, key in (("compute_scale", "compute_scale"), ("compression", "gradient_compression")):
        check_value(spec.WhatIf, name, getattr(config, key), key)
    measured = plan.spec
    topology = _topology(config.topology, measured.topology)
    world_sizes = _world_sizes(config.world_sizes, measured)
    global_batch = config.global_batch or measured.global_batch
    check_value(spec.Spec, "global_batch", global_batch, "global_batch")
    steps = config.accumulation_steps
    check_batches(
        measured.mode,
        world_sizes,
        batch_per_rank=config.batch_per_rank,
        global_batch=global_batch,
        steps=steps,
    )
    return spec.WhatIf(
        changes=tuple(overrides),
        world_sizes=world_sizes,
        topology=topology,
        elsewhere=any(key.startswith(JOINS) for key in changes),
        bucket_cap_mb=config.ddp.bucket_cap_mb if "ddp.bucket_cap_mb" in changes else None,
        accumulation=steps if "accumulation_steps" in changes else None,
        batch_per_rank=config.batch_per_rank,
        global_batch=global_batch,
        compute_scale=config.compute_scale,
        compression=config.gradient_compression,
        without_straggler=config.without_straggler,
    )


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
    device, backend = (FOUND, BACKEND_OF[FOUND]) if elsewhere else (measured.device, measured.backend)
    return freeze_topology(
        config,
        ranks_per_host=measured.ranks_per_host if ranks is None else ranks,
        device=device if config.device == "auto" else config.device,
        backend=backend if config.backend == "auto" else config.backend,
    )


def _world_sizes(asked: list[int] | None, measured: spec.Spec) -> tuple[int, ...]:
    if asked is None:
        return measured.world_sizes
    if not asked:
        raise InputError("world_sizes=[]: at least one world size is expected, such as [2,4,8]")
    for size in asked:
        if not 1 <= size <= spec.WORLD_SIZE_MAX:
            raise InputError(f"world_sizes={asked}: {size} is not between 1 and {spec.WORLD_SIZE_MAX}")
    return ascending("world_sizes", asked)


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
