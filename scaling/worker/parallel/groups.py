"""The process groups of a launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from scaling.settings.plan import Ranks
from scaling.worker.parallel.collectives import gather_in_rings


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate; this rank is one of them."""

    key: int
    """Its key in the records: the world size, or below 0 for a pairing."""
    ranks: Ranks
    control: Any
    """Gloo group for barriers and clocks, whatever carries the gradients; None for a single rank."""
    data: Any
    """Group that carries the gradients."""


def make_groups(
    parts: Mapping[int, Sequence[Ranks]],
    *,
    rank: int,
    world: int,
    backend: str,
    timeout: timedelta,
    host_of: Callable[[int], int] = int,
) -> dict[int, Group]:
    """Make this rank's group for each key of `parts`, and the group of itself under 1.

    `parts`: disjoint sub-groups by key. Every rank makes all groups in the same order, also those without it; equal
    groups are made once. `host_of`: the host of a rank; by default each has its own.

    No `device_id` is passed, here or to the default group. With it, NCCL would connect at once and split the default
    group, and ranks outside a group would have to take part. Without it, the members make the communicator in the
    group's first collective, on the current device.
    """

    @functools.cache
    def new(ranks: Ranks, over: str) -> Any:
        return dist.new_group(list(ranks), timeout=timeout, backend=over)

    solo = [new((r,), backend) for r in range(world)][rank]
    joined = {1: Group(key=1, ranks=(rank,), control=None, data=solo)}
    for key, groups in sorted(parts.items()):
        for ranks in groups if key != 1 else ():
            group = Group(key=key, ranks=ranks, control=new(ranks, "gloo"), data=new(ranks, backend))
            if rank in ranks:
                joined[key] = group
                gather_in_rings(group.data, [host_of(member) for member in ranks])
    return joined


def free(groups: dict[int, Group], key: int) -> None:
    """Release the group that carries gradients, mainly for the device memory of an NCCL communicator.

    All of its ranks call this while none of its collectives runs. A group that others share is kept.
    """
    group = groups[key]
    others = [other.data for k, other in groups.items() if k != key]
    if key != 1 and not any(group.data is other for other in (None, group.control, *others)):
        dist.destroy_process_group(group.data)
        groups[key] = replace(group, data=None)
