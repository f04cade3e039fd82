"""Stamp the all-reduces of a user's DDP wrapper without a communication hook.

A communication hook cannot be removed, takes CPU time at every bucket of every step, and excludes a hook of the user.
But every collective passes the dispatcher, and torch registers no all-reduce kernel at the autograd keys. While the
tap is open it has a kernel there, which takes a stamp, passes the same arguments on to the back end's kernel, and
asks the returned work to call back. It is removed after each block.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.spec.run import COLLECTIVES
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.accelerator.devices import Device
from scaling.worker.parallel.ddp import bucket_bytes

_ALL_REDUCE = COLLECTIVES.index("all_reduce")
_KEYS = {"cpu": "AutogradCPU", "cuda": "AutogradCUDA"}


class Tap:
    """Stamps launch and done of every bucket's all-reduce while it is open."""

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
        """Begin to stamp all-reduces."""
        if self._library is None and self._size > 1:
            # A hook of the user may send something of another size than the bucket.
            self._buckets = frozenset() if has_own_hook(self._ddp) else frozenset(bucket_bytes(self._ddp))
            self._rows = []
            self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
            self._library.impl("allreduce_", self._all_reduce, self._key)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Stop stamping."""
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

        with contextlib.suppress(RuntimeError):  # some back ends' work has no future
            dist.Work.unbox(boxed).get_future().add_done_callback(done)

    def take(self, sync_end: int) -> list[CollectiveRow]:
        """Return the step's collectives, with tokens as stamps; a bucket counts as ready when it is launched.

        `sync_end`: token of when all were done on this rank. It stands in for a `done` whose callback has not run yet,
        since callbacks come from another thread that may still wait for the interpreter.
        """
        rows, self._rows = self._rows, []
        return [
            CollectiveRow(
                seq=seq,
                kind=_ALL_REDUCE,
                group=self._size,
                bytes=size,
                ready_ns=launch,
                launch_ns=launch,
                done_ns=done or sync_end,
            )
            for seq, (size, launch, done) in enumerate(rows)
        ]


def backend_of(group: Any, device: str) -> str:
    """The back end that reduces tensors of a device. The group's name may be `undefined` or `cpu:gloo,cuda:nccl`."""
    return str(group._get_backend(torch.device(device)).name())  # noqa: SLF001


def has_own_hook(ddp: DistributedDataParallel) -> bool:
    """Whether the user's loop has registered a communication hook."""
    return bool(getattr(ddp, "_comm_hooks", None))
