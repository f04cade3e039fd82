"""What `scaling predict` is asked, checked against the run and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scaling import spec
from scaling.check_topology import to_levels, to_link
from scaling.check_value import at_least, check_batches, one_of, positive
from scaling.errors import InputError
from scaling.fabric import PLACEMENTS, Topology
from scaling.plan import Plan
from scaling.schema import TopologyConfig, WhatIfConfig

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
"""Where a topology is to be found and what it costs, which changes nothing about it."""
JOINS = (
    "topology.levels",
    "topology.link.latency_us",
    "topology.link.rate",
    "topology.link.share",
    "topology.placement",
    "topology.ranks_per_host",
)
"""What decides how ranks are joined."""


def to_whatif(
    config: WhatIfConfig, base: WhatIfConfig, plan: Plan, overrides: Sequence[str] = ()
) -> spec.WhatIf:
    """Check what was asked against the run. InputError says what would be accepted.

    `base` is the run's own config, `config` the same with `overrides`.
    """
    changes = _differences(config, base)
    for key in changes:
        if not any(key == known or key.startswith(known + ".") for known in KNOWN):
            raise InputError(
                f"{key}: what it changes cannot be predicted, only measured (scaling run); "
                f"predict takes {', '.join(KNOWN)}"
            )
    for key in ("batch_per_rank", "accumulation_steps"):
        at_least(key, getattr(config, key), 1)
    positive("ddp.bucket_cap_mb", config.ddp.bucket_cap_mb)
    for key in ("compute_scale", "gradient_compression"):
        positive(key, getattr(config, key))
    own = plan.spec
    topology = _topology(config.topology, own.topology)
    world_sizes = _world_sizes(config.world_sizes, own)
    global_batch = config.global_batch or own.global_batch
    at_least("global_batch", global_batch, 1)
    steps = config.accumulation_steps
    check_batches(
        own.mode,
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


def _topology(config: TopologyConfig, own: Topology) -> Topology:
    """Any machine's: this one need not have what it names."""
    ranks = config.ranks_per_host
    if ranks is None and config.name != own.name:
        raise InputError(
            f"topology={config.name}: how many ranks a host has depends on the machine; "
            "a number is expected, such as topology.ranks_per_host=8"
        )
    ranks = own.ranks_per_host if ranks is None else ranks
    at_least("topology.hosts", config.hosts, 1)
    at_least("topology.ranks_per_host", ranks, 1)
    one_of("topology.placement", config.placement, PLACEMENTS)
    return Topology(
        name=config.name,
        kind=config.kind,
        hosts=config.hosts,
        ranks_per_host=ranks,
        device=own.device if config.device == "auto" else config.device,
        backend=own.backend if config.backend == "auto" else config.backend,
        link=to_link(config.link, "topology.link"),
        levels=to_levels(config.levels),
        placement=config.placement,
        note=config.note,
    )


def _world_sizes(asked: list[int] | None, own: spec.Spec) -> tuple[int, ...]:
    if asked is None:
        return own.world_sizes
    if not asked:
        raise InputError("world_sizes=[]: at least one world size is expected, such as [2,4,8]")
    for size in asked:
        if not 1 <= size <= spec.WORLD_SIZE_MAX:
            raise InputError(f"world_sizes={asked}: {size} is not between 1 and {spec.WORLD_SIZE_MAX}")
    return tuple(sorted(set(asked)))


def _differences(config: WhatIfConfig, base: WhatIfConfig) -> list[str]:
    ours, theirs = _flat(dataclasses.asdict(config)), _flat(dataclasses.asdict(base))
    changed = [key for key, value in ours.items() if key not in theirs or theirs[key] != value]
    return [key for key in changed if not key.startswith(PLACES)]


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        inside = isinstance(value, dict)
        found |= _flat(value, f"{prefix}{key}.") if inside else {f"{prefix}{key}": value}
    return found
