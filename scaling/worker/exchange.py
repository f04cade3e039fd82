"""Collectives alone: what replay and the size sweep run."""

from __future__ import annotations

import torch
import torch.distributed as dist

from scaling.records import COLLECTIVES
from scaling.worker.devices import Device
from scaling.worker.groups import Groups

_ALL_REDUCE = COLLECTIVES.index("all_reduce")
_ITEM_BYTES = 4


class Exchange:
    """All-reduces of one buffer of fp32 on the device."""

    def __init__(self, device: Device, groups: Groups) -> None:
        self._device = device
        self._groups = groups
        self._buffer = torch.zeros(0)

    def reserve(self, size: int) -> None:
        """Make messages of up to `size` bytes possible."""
        if self._buffer.numel() * _ITEM_BYTES < size:
            self._buffer = torch.zeros(size // _ITEM_BYTES + 1, device=self._device.torch_device)

    def run(self, n: int, sizes: list[int]) -> tuple[list[int], list[list[int]]]:
        """Messages of `sizes` bytes one after the other, ranks aligned at the first.

        Tokens of begin and end, and one records.COLLECTIVE_FIELDS row of tokens each.
        """
        stamp = self._device.clock.stamp
        self._device.synchronize()
        dist.barrier(self._groups.control[n])
        begin = stamp()
        rows = [self._all_reduce(n, size, seq) for seq, size in enumerate(sizes)]
        return [begin, stamp()], rows

    def once(self, n: int, size: int) -> list[int]:
        """One message in a window of its own, in ns."""
        clock = self._device.clock
        with clock.window(4):
            _, (row,) = self.run(n, [size])
        return clock.resolve(row)

    def _all_reduce(self, n: int, size: int, seq: int) -> list[int]:
        stamp = self._device.clock.stamp
        part = self._buffer[: max(1, size // _ITEM_BYTES)]
        launch = stamp()
        dist.all_reduce(part, group=self._groups.data[n])  # on CUDA: the current stream waits for it
        return [seq, _ALL_REDUCE, n, part.numel() * _ITEM_BYTES, launch, launch, stamp()]


def stamps_of(exchanges: list[list[int]]) -> int:
    """How many stamps `run` takes over these lists of sizes."""
    return sum(2 + 2 * len(sizes) for sizes in exchanges)
