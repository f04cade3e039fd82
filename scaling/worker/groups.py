"""The process groups of a launch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """By world size n, over ranks 0..n-1, which the topology places on hosts."""

    control: dict[int, Any]
    """Gloo, n > 1: barriers and clocks, whatever carries the gradients."""
    data: dict[int, Any]
    """What carries the gradients; at n = 1 this rank's own."""

    @property
    def solo(self) -> Any:
        """The data group of this rank alone."""
        return self.data[1]


def make_groups(sizes: Sequence[int], *, rank: int, world: int, backend: str, timeout: timedelta) -> Groups:
    """Every rank makes every group in the same order, its own or not.

    No `device_id` is given, here or to the default group: it would bind NCCL to connect at once and
    to split the default group, in which ranks outside of a group have to take part. Without it a
    communicator is made in its group's first collective, by its members. The device is the one that
    was set as current, and that tensors are on.
    """
    new = functools.partial(dist.new_group, timeout=timeout)
    shared = sorted(n for n in set(sizes) if n > 1)
    control = {n: new(list(range(n)), backend="gloo") for n in shared}
    data = control if backend == "gloo" else {n: new(list(range(n)), backend=backend) for n in shared}
    solo = [new([r], backend=backend) for r in range(world)][rank]
    return Groups(control=control, data={1: solo, **data})
