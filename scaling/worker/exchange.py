"""Collectives alone: what replay and the size sweep run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from scaling.records import COLLECTIVES
from scaling.worker.clock import resolve_collective
from scaling.worker.devices import Device
from scaling.worker.groups import Group

_ITEM_BYTES = 4
ALL_REDUCE = COLLECTIVES.index("all_reduce")
# Renamed in torch 2.13; the older names still exist there and warn.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Message = tuple[int, int]
"""(index into records.COLLECTIVES, bytes), the bytes as nccl-tests counts them: of the whole result of an
all-gather, of the whole input of a reduce-scatter."""


class Exchange:
    """Collectives over one buffer of fp32 on the device."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._buffer = torch.zeros(0)
        self._part = torch.zeros(0)

    def reserve(self, size: int) -> None:
        """Make messages of up to `size` bytes possible."""
        if self._buffer.numel() * _ITEM_BYTES < size:
            self._buffer = torch.zeros(size // _ITEM_BYTES + 1, device=self._device.torch_device)
            self._part = torch.zeros_like(self._buffer)

    def run(
        self, group: Group, messages: Sequence[Message], dtype: torch.dtype = torch.float32
    ) -> tuple[list[int], list[list[int]]]:
        """Messages of elements of `dtype` one after the other, the group's ranks aligned at the first.

        Tokens of begin and end, and one records.COLLECTIVE_FIELDS row of tokens each.
        """
        stamp = self._device.clock.stamp
        self._device.synchronize()
        dist.barrier(group.control)
        begin = stamp()
        rows = [self._one(group, kind, size, seq, dtype) for seq, (kind, size) in enumerate(messages)]
        return [begin, stamp()], rows

    def once(self, group: Group, size: int) -> list[int]:
        """One all-reduce in a window of its own, in ns."""
        clock = self._device.clock
        with clock.window(4):
            _, (row,) = self.run(group, [(ALL_REDUCE, size)])
        return resolve_collective(clock, row)

    def _one(self, group: Group, kind: int, size: int, seq: int, dtype: torch.dtype) -> list[int]:
        """Run and stamp one message; on CUDA the current stream waits for it."""
        stamp, n, over = self._device.clock.stamp, len(group.ranks), group.data
        items = size // dtype.itemsize
        each = max(1, items // n)
        split = COLLECTIVES[kind] in ("all_gather", "reduce_scatter")
        whole = self._buffer.view(dtype)[: each * n if split else max(1, items)]
        part = self._part.view(dtype)[:each]
        launch = stamp()
        match COLLECTIVES[kind]:
            case "all_gather":
                _all_gather(whole, part, group=over)
            case "reduce_scatter":
                _reduce_scatter(part, whole, group=over)
            case "broadcast":
                dist.broadcast(whole, group.ranks[0], group=over)
            case _:
                dist.all_reduce(whole, group=over)
        return [seq, kind, group.key, whole.numel() * dtype.itemsize, launch, launch, stamp()]


def stamps_of(exchanges: Sequence[Sequence[Message]]) -> int:
    """How many stamps `run` takes over these lists of messages."""
    return sum(2 + 2 * len(messages) for messages in exchanges)
