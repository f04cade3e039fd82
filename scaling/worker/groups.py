"""The process groups of a launch."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from scaling.plan import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate, this one among them; the topology places them on hosts."""

    key: int
    """In the records: the world size, below 0 a pairing."""
    ranks: Ranks
    control: Any
    """Gloo: barriers and clocks, whatever carries the gradients; None for a rank alone."""
    data: Any
    """What carries the gradients."""


def make_groups(
    parts: Mapping[int, Sequence[Ranks]], *, rank: int, world: int, backend: str, timeout: timedelta
) -> dict[int, Group]:
    """The rank's group of each key of `parts` that has one, and its own under 1.

    `parts`: disjoint sub-groups by key. Every rank makes every group in the same order, its own or not;
    equal ones are made once.

    No `device_id` is given, here or to the default group: it would bind NCCL to connect at once and
    to split the default group, in which ranks outside of a group have to take part. Without it a
    communicator is made in its group's first collective, by its members. The device is the one that
    was set as current, and that tensors are on.
    """

    @functools.cache
    def new(ranks: Ranks, over: str) -> Any:
        return dist.new_group(list(ranks), timeout=timeout, backend=over)

    solo = [new((r,), backend) for r in range(world)][rank]
    found = {1: Group(key=1, ranks=(rank,), control=None, data=solo)}
    for key, groups in sorted(parts.items()):
        for ranks in groups if key != 1 else ():
            group = Group(key=key, ranks=ranks, control=new(ranks, "gloo"), data=new(ranks, backend))
            if rank in ranks:
                found[key] = group
    return found


def free(groups: dict[int, Group], key: int) -> None:
    """Give back what carries a group's gradients, an NCCL communicator's device memory above all.

    By all of its ranks, with nothing under way. What other groups need as well stays.
    """
    group = groups[key]
    others = [other.data for k, other in groups.items() if k != key]
    if key != 1 and not any(group.data is other for other in (None, group.control, *others)):
        dist.destroy_process_group(group.data)
        groups[key] = replace(group, data=None)
