"""Stamp the broadcast of buffers, with which DDP begins a forward.

A module with buffers (BatchNorm's running statistics) takes part in a broadcast from its first rank at the begin of
every forward that follows a reduced backward. Ranks wait for each other there, so a late rank shows in forward and not
at the first bucket. The broadcast lies between the call of the wrapper and the call of the module inside it, so two
hooks find it without a change to DDP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def sends_buffers(module: torch.nn.Module) -> bool:
    """Whether this is a DDP wrapper of two or more ranks that keeps buffers alike."""
    return (
        isinstance(module, DistributedDataParallel)
        and dist.get_world_size(module.process_group) > 1
        and bool(module.broadcast_buffers)
        and any(True for _ in module.buffers())
    )


def will_send_buffers(ddp: DistributedDataParallel) -> bool:
    """Whether the next forward of such a wrapper begins with a broadcast."""
    return bool(ddp.will_sync_module_buffers())  # type: ignore[no-untyped-call]


class BufferSync:
    """Stamps begin and end of each broadcast of a wrapper's buffers."""

    def __init__(self, ddp: torch.nn.Module) -> None:
        assert isinstance(ddp, DistributedDataParallel)
        self._ddp = ddp

    @contextlib.contextmanager
    def stamping(self, stamp: Callable[[], int], stamps: list[int]) -> Iterator[None]:
        """Inside, two stamps are appended for every forward with a broadcast."""
        begun = False

        def outer(_module: Any, _args: Any) -> None:
            nonlocal begun
            begun = will_send_buffers(self._ddp)
            if begun:
                stamps.append(stamp())

        def inner(_module: Any, _args: Any) -> None:
            nonlocal begun
            if begun:
                stamps.append(stamp())
            begun = False

        handles = [
            self._ddp.register_forward_pre_hook(outer),
            self._ddp.module.register_forward_pre_hook(inner),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
