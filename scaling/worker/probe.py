"""Per-bucket stamps of DDP's own all-reduce, and the ready times that DDP itself keeps."""

# No postponed annotations here: DDP checks a hook's annotations by identity.

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records import COLLECTIVES
from scaling.worker.clock import now_ns

_ALL_REDUCE = COLLECTIVES.index("all_reduce")


class BucketProbe:
    """A communication hook that does what DDP does by default, and stamps launch and done of every bucket.

    On sampled blocks only and on a wrapper of its own: a hook costs some 0.1 ms of CPU a bucket
    and cannot be removed.
    """

    def __init__(self, ddp: DistributedDataParallel, group: Any, group_key: int) -> None:
        self._group = group
        self._group_key = group_key
        self._size = dist.get_world_size(group)
        self._ready = ReadyTimes(ddp)
        self._rows: list[list[int]] = []
        ddp.register_comm_hook(None, self._hook)

    def _hook(
        self,
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        tensor = bucket.buffer()
        tensor.div_(self._size)  # DDP's default divides while it copies into the bucket; a hook has to itself
        row = [bucket.index(), tensor.numel() * tensor.element_size(), now_ns(), 0]
        self._rows.append(row)
        work = dist.all_reduce(tensor, group=self._group, async_op=True)

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            row[3] = now_ns()
            return future.value()[0]

        return work.get_future().then(done)  # type: ignore[no-any-return]

    def take(self, forward_end_ns: int) -> list[list[int]]:
        """The step's collectives as records.COLLECTIVE_FIELDS rows; empties the store."""
        rows, self._rows = self._rows, []
        ready = self._ready.absolute_ns(forward_end_ns)
        return [
            [seq, _ALL_REDUCE, self._group_key, size, ready[index] if index < len(ready) else 0, launch, done]
            for seq, (index, size, launch, done) in enumerate(rows)
        ]


class ReadyTimes:
    """When each bucket's last gradient was there, from the time that DDP itself keeps for every parameter."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._parameters: list[list[int]] = []

    def absolute_ns(self, forward_end_ns: int) -> list[int]:
        """In the order of reduction. DDP counts from the end of the module's forward; empty while unsettled."""
        if not self._parameters:  # the buckets do not change once they are rebuilt
            text = str(ddp_logging_data(self._ddp).get("rebuilt_per_bucket_param_indices") or "")
            self._parameters = [[int(i) for i in part.split()] for part in text.split(",") if part.strip()]
        since_forward = self._ddp.reducer.get_backward_stats()
        return [forward_end_ns + max(since_forward[i] for i in indices) for indices in self._parameters]


class SoloProbe:
    """Ready times of a wrapper that reduces over one rank: there is no wire, so no launch and no done."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ready = ReadyTimes(ddp)
        self._bytes = bucket_bytes(ddp)

    def take(self, forward_end_ns: int) -> list[list[int]]:
        """The step's buckets as records.COLLECTIVE_FIELDS rows."""
        ready = self._ready.absolute_ns(forward_end_ns)
        return [
            [seq, _ALL_REDUCE, 1, size, at, 0, 0]
            for seq, (size, at) in enumerate(zip(self._bytes, ready, strict=False))
        ]


def ddp_logging_data(ddp: DistributedDataParallel) -> dict[str, Any]:
    """What DDP says of itself: settings, buckets, times."""
    return dict(ddp._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets in the order of reduction, bytes; DDP settles them in its second step."""
    data = ddp_logging_data(ddp)
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]
