"""Stamps of DDP's all-reduces on a wrapper that is not ours: no communication hook, and gone after each block.

A communication hook cannot be removed again, takes CPU time at every bucket of every step, and is in
the way of the user's own. But every collective passes the dispatcher, and nobody has a kernel for
all-reduce at the autograd keys: while one of ours stands there, it stamps, hands the very same arguments
on to the backend's kernel, and asks the work it returns to call back.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records import COLLECTIVES
from scaling.worker.clock import now_ns
from scaling.worker.devices import Device
from scaling.worker.probe import bucket_bytes

_ALL_REDUCE = COLLECTIVES.index("all_reduce")
_KEYS = {"cpu": "AutogradCPU", "cuda": "AutogradCUDA"}


class Tap:
    """Launch and done of every all-reduce of a bucket, while it is open."""

    def __init__(self, ddp: DistributedDataParallel, device: Device) -> None:
        self._ddp = ddp
        self._group = ddp.process_group
        self._size = dist.get_world_size(self._group)
        self._key = _KEYS[device.type]
        self._stamp = device.clock.stamp
        self._stamp_done = device.clock.stamp if backend_of(self._group, device.type) == "nccl" else now_ns
        self._library: torch.library.Library | None = None
        self._buckets: frozenset[int] = frozenset()
        self._rows: list[list[int]] = []

    def open(self) -> None:
        """From here on all-reduces are stamped."""
        if self._library is None and self._size > 1:
            # With a hook of the user's own, what is sent is not as large as a bucket.
            self._buckets = frozenset() if has_own_hook(self._ddp) else frozenset(bucket_bytes(self._ddp))
            self._rows = []
            self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
            self._library.impl("allreduce_", self._all_reduce, self._key)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """And here no longer."""
        if self._library is not None:
            self._library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001
            self._library = None

    def _all_reduce(self, tensors: list[torch.Tensor], group: Any, *rest: Any, **named: Any) -> Any:
        size = sum(t.nbytes for t in tensors)
        row = None
        if (not self._buckets or size in self._buckets) and self._is_ours(group):
            row = [size, self._stamp(), 0]
            self._rows.append(row)
        with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001
            result = torch.ops.c10d.allreduce_.default(tensors, group, *rest, **named)
        if row is not None:
            self._at_end(result[1], row)
        return result

    def _is_ours(self, group: Any) -> bool:
        return bool(dist.ProcessGroup.unbox(group).group_name == self._group.group_name)

    def _at_end(self, boxed: Any, row: list[int]) -> None:
        def done(_future: Any) -> None:
            row[2] = self._stamp_done()

        with contextlib.suppress(RuntimeError):  # a backend whose work has no future
            dist.Work.unbox(boxed).get_future().add_done_callback(done)

    def take(self, sync_end: int) -> list[list[int]]:
        """The step's collectives as records.COLLECTIVE_FIELDS rows of tokens; a bucket is ready when launched.

        `sync_end`: token of when all were done here. The call back comes from another thread, which
        may still be waiting for the interpreter.
        """
        rows, self._rows = self._rows, []
        return [
            [seq, _ALL_REDUCE, self._size, size, launch, launch, done or sync_end]
            for seq, (size, launch, done) in enumerate(rows)
        ]


def backend_of(group: Any, device: str) -> str:
    """What reduces tensors of a device: a group's own name may be `undefined` or `cpu:gloo,cuda:nccl`."""
    return str(group._get_backend(torch.device(device)).name())  # noqa: SLF001


def has_own_hook(ddp: DistributedDataParallel) -> bool:
    """Whether the loop has registered a communication hook."""
    return bool(getattr(ddp, "_comm_hooks", None))
