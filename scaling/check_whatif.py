"""What `scaling predict` is asked, checked against the run and frozen. InputError says what would be accepted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scaling import spec
from scaling.check import to_levels, to_link
from scaling.errors import InputError
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
        _positive(key, getattr(config, key), least=1)
    _positive("ddp.bucket_cap_mb", config.ddp.bucket_cap_mb)
    for key in ("compute_scale", "gradient_compression"):
        _positive(key, getattr(config, key))
    own = plan.spec
    topology = _topology(config.topology, own.topology)
    world_sizes = _world_sizes(config.world_sizes, own)
    global_batch = config.global_batch or own.global_batch
    _positive("global_batch", global_batch, least=1)
    steps = config.accumulation_steps
    for n in world_sizes:
        if own.mode == "strong" and global_batch % (n * steps):
            raise InputError(
                f"global_batch={global_batch}: does not divide by world size {n} x accumulation_steps {steps}"
            )
    if own.mode == "weak" and config.batch_per_rank % steps:
        raise InputError(
            f"batch_per_rank={config.batch_per_rank}: does not divide by accumulation_steps={steps}; use a multiple"
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


def _topology(config: TopologyConfig, own: spec.Topology) -> spec.Topology:
    """Any machine's: this one need not have what it names."""
    ranks = config.ranks_per_host
    if ranks is None and config.name != own.name:
        raise InputError(
            f"topology={config.name}: how many ranks a host has depends on the machine; "
            "a number is expected, such as topology.ranks_per_host=8"
        )
    ranks = own.ranks_per_host if ranks is None else ranks
    _positive("topology.hosts", config.hosts, least=1)
    _positive("topology.ranks_per_host", ranks, least=1)
    if config.placement not in spec.PLACEMENTS:
        raise InputError(
            f"topology.placement={config.placement}: one of {', '.join(spec.PLACEMENTS)} is expected"
        )
    return spec.Topology(
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


def _positive(key: str, value: float, least: float | None = None) -> None:
    if least is not None and value < least:
        raise InputError(f"{key}={value}: at least {least:g} is expected")
    if not 0 < value < float("inf"):
        raise InputError(f"{key}={value}: a positive number is expected")
