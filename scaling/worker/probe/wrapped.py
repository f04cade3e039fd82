"""A DistributedDataParallel in a user's loop: its buckets, and how it accumulates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.spec.run import Ddp
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.buckets import BucketDetail
from scaling.worker.parallel.buffers import sends_buffers, will_send_buffers
from scaling.worker.parallel.ddp import bucket_bytes, has_own_hook
from scaling.worker.parallel.guard import compiled as is_compiled
from scaling.worker.parallel.inline_probe import InlineProbe
from scaling.worker.parallel.norms import InlineWaits, Norms
from scaling.worker.parallel.strategy import Detail
from scaling.worker.parallel.streams import withheld
from scaling.worker.parallel.tap import Tap, backend_of


class WrappedModel:
    """DDP's wrapper, as a probe sees it (probe.followed.Followed)."""

    hooks_first = False

    def __init__(self, ddp: DistributedDataParallel, *, compiled: bool) -> None:
        """`compiled`: the loop calls what torch.compile made of the wrapper."""
        self.ddp, self._compiled = ddp, compiled
        self.members = list(dist.get_process_group_ranks(ddp.process_group))
        self.sends_buffers = sends_buffers(ddp)
        self._norms = Norms(ddp.module)

    @property
    def root(self) -> torch.nn.Module:
        """The module that the loop calls."""
        return self.ddp

    @property
    def module(self) -> torch.nn.Module:
        """The user's own module."""
        inner: torch.nn.Module = self.ddp.module
        return inner

    @property
    def backend(self) -> str:
        """The back end that carries the gradients."""
        return backend_of(self.ddp.process_group, next(self.ddp.parameters()).device.type)

    @property
    def dtype(self) -> torch.dtype:
        """The type in which it computes."""
        return next(self.ddp.parameters()).dtype

    def will_send_buffers(self) -> bool:
        """Whether the next forward broadcasts the buffers."""
        return will_send_buffers(self.ddp)

    def reduces(self) -> bool:
        """Whether the next backward reduces."""
        return bool(self.ddp.require_backward_grad_sync)

    def communicators(self) -> list[Any]:
        """DDP's own."""
        return [self.ddp.process_group]

    def withheld(self, device: Accelerator) -> str:
        """Nothing but its communicator's stream is stamped."""
        return withheld(self.communicators(), (), device)

    def detail(self, device: Accelerator, *, detailed: bool) -> Detail | None:
        """What a stamped block records: its buckets, and where its norms wait for other ranks."""
        if not self._waits_inside():
            return BucketDetail(self.ddp, Tap(device.clock)) if detailed else None
        tap, group = Tap(device.clock), self.ddp.process_group
        waits = InlineWaits(self._norms, group, device.clock.stamp, tap)
        buckets = BucketDetail(self.ddp, tap) if detailed else None
        return InlineProbe(waits, buckets, self.ddp, len(self.members), layers=len(self._norms))

    def _waits_inside(self) -> bool:
        """Whether norms wait for the wrapper's ranks, and that can be seen: not in what torch.compile made."""
        if not len(self._norms) or len(self.members) == 1 or self._compiled:
            return False
        return self._norms.are_over(self.ddp.process_group) and not any(map(is_compiled, self.ddp.modules()))

    def sizes(self) -> list[int]:
        """Bytes of each bucket."""
        return bucket_bytes(self.ddp)

    def groups(self) -> Mapping[int, Sequence[int]]:
        """There is one communicator, of all ranks."""
        return {}

    def settings(self) -> dict[str, Any]:
        """The wrapper's settings."""
        ddp = self.ddp
        return {
            "ddp": Ddp(
                bucket_cap_mb=ddp.bucket_bytes_cap / 2**20,
                gradient_as_bucket_view=bool(ddp.gradient_as_bucket_view),
                static_graph=bool(ddp.static_graph),
                find_unused_parameters=bool(ddp.find_unused_parameters),
                comm_hook="own" if has_own_hook(ddp) else "none",
            )
        }

    def refused(self) -> str:
        """Every wrapper is followed."""
        return ""

    def no_baseline(self) -> str:
        """Where DDP or a layer counts on every backward being the training's."""
        if self.ddp.static_graph or self.ddp.find_unused_parameters:
            return (
                "with static_graph or find_unused_parameters DDP counts gradients from backward to backward, and "
                "would count those of the baseline in the training"
            )
        if len(self._norms):
            return "SyncBatchNorm waits for the other ranks, and a rank alone has none"
        return ""
