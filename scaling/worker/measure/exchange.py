"""Run collectives without training: for the replay, pairs and fabric arms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist

from scaling.records.format import CollectiveRow, PlainRow
from scaling.settings.run import COLLECTIVES
from scaling.settings.schedule import Message
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns, resolve_collective
from scaling.worker.accelerator.memory import is_out_of_memory
from scaling.worker.parallel.collectives import all_gather, reduce_scatter
from scaling.worker.parallel.groups import Group
from scaling.worker.session.progress import beat

_ITEM_BYTES = 4
ALL_REDUCE = COLLECTIVES.index("all_reduce")


class Exchange:
    """Runs collectives over one fp32 buffer on the device."""

    def __init__(self, device: Accelerator, groups: Mapping[int, Group] | None = None) -> None:
        """`groups`: by key, where messages are for other groups than the one that is aligned."""
        self._device, self._groups = device, groups or {}
        self._buffer = torch.zeros(0)
        self._part = torch.zeros(0)

    @contextlib.contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Inside, there is room for messages of up to `size` bytes; afterwards the training has the memory again."""
        self.reserve(size)
        try:
            yield
        finally:
            self._buffer = self._part = torch.zeros(0)

    def room(self, size: int, *, least: int) -> int:
        """The largest size for whose messages there is memory: `size` bytes, or a half of it, and so on to `least`."""
        while size > least:
            try:
                with self.reserved(size):
                    return size
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            self._device.release_memory()
            size = max(least, size // 2)
        return size

    def reserve(self, size: int) -> None:
        """Make room for messages of up to `size` bytes. Its pages are touched, so that no message is the first to."""
        if self._buffer.numel() * _ITEM_BYTES < size:
            self._buffer = torch.empty(size // _ITEM_BYTES + 1, device=self._device.torch_device).zero_()
            self._part = torch.empty_like(self._buffer).zero_()

    def run(
        self, group: Group, messages: Sequence[Message], dtype: torch.dtype = torch.float32
    ) -> tuple[PlainRow, list[CollectiveRow]]:
        """Run messages with elements of `dtype` one after the other; a barrier aligns the group's ranks before them.

        Returns begin and end, and one row a message, all stamps as tokens.
        """
        stamp = self._device.clock.stamp
        self._device.synchronize()
        self._device.barrier(group.control)
        begin = stamp()
        rows = [
            self._run_message(self._groups.get(message.group or group.key, group), message, seq, dtype)
            for seq, message in enumerate(messages)
        ]
        end = stamp()
        beat()
        return PlainRow(begin, end), rows

    def once(self, group: Group, size: int, kind: int = ALL_REDUCE) -> CollectiveRow:
        """Run one collective in its own window; its stamps are in ns."""
        clock = self._device.clock
        with clock.window(4):
            _, (row,) = self.run(group, [Message(kind, size)])
        return resolve_collective(clock, row)

    def _run_message(self, group: Group, message: Message, seq: int, dtype: torch.dtype) -> CollectiveRow:
        """Run and stamp one message. On a device the current stream waits for it, the host does not."""
        stamp, n, over, kind = self._device.clock.stamp, len(group.ranks), group.data, message.kind
        items = message.bytes // dtype.itemsize
        each = max(1, items // n)
        split = COLLECTIVES[kind] in ("all_gather", "reduce_scatter")
        whole = self._buffer.view(dtype)[: each * n if split else max(1, items)]
        part = self._part.view(dtype)[:each]

        def send() -> None:
            match COLLECTIVES[kind]:
                case "all_gather":
                    all_gather(whole, part, group=over)
                case "reduce_scatter":
                    reduce_scatter(part, whole, over)
                case "broadcast":
                    dist.broadcast(whole, group.ranks[0], group=over)
                case _:
                    dist.all_reduce(whole, group=over)

        if message.calls > 1:
            send()  # all ranks are there when it ends, and the host is ahead of the device
        enqueue, launch = now_ns(), stamp()
        for _ in range(message.calls):
            send()
        return CollectiveRow(
            seq=seq,
            kind=kind,
            group=group.key,
            bytes=whole.numel() * dtype.itemsize,
            ready_ns=launch,
            launch_ns=launch,
            done_ns=stamp(),
            enqueue_ns=enqueue,
            calls=message.calls,
        )


def stamps_of(exchanges: Sequence[Sequence[Message]]) -> int:
    """Number of stamps that `run` takes for these lists of messages."""
    return sum(2 + 2 * len(messages) for messages in exchanges)
