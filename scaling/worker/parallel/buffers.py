"""Stamp the broadcast of buffers, with which DDP begins a forward.

A module with buffers (BatchNorm's running statistics) takes part in a broadcast from its first rank at the begin of
every forward that follows a reduced backward. Ranks wait for each other there, so a late rank shows in forward and not
at the first bucket. The broadcast lies between the call of the wrapper and the call of the module inside it, so two
hooks find it without a change to DDP.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES


def sends_buffers(module: torch.nn.Module) -> bool:
    """Whether this is a DDP wrapper of two or more ranks that keeps buffers alike."""
    return (
        isinstance(module, DistributedDataParallel)
        and dist.get_world_size(module.process_group) > 1
        and bool(module.broadcast_buffers)
        and any(True for _ in module.buffers())
    )


def broadcast_rows(
    ddp: DistributedDataParallel, times: Sequence[tuple[int, int]], first: int
) -> list[CollectiveRow]:
    """A step's broadcasts of a wrapper's buffers, from begin and end of each; `first`: position of the first."""
    size = sum(buffer.nbytes for buffer in ddp.module.buffers())
    return [
        CollectiveRow(
            seq=first + index,
            kind=KINDS.index("broadcast"),
            group=dist.get_world_size(ddp.process_group),
            bytes=size,
            ready_ns=0,
            launch_ns=begin,
            done_ns=end,
            phase=PHASES.index("forward"),
        )
        for index, (begin, end) in enumerate(times)
    ]


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
