"""Per-bucket stamps of DDP's own all-reduce, and when each bucket was ready."""

# No postponed annotations here: DDP checks a hook's annotations by identity.

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records import COLLECTIVES
from scaling.worker.clock import now_ns
from scaling.worker.compression import reduction
from scaling.worker.devices import Device

_ALL_REDUCE = COLLECTIVES.index("all_reduce")

Take = Callable[[int], list[list[int]]]
"""Given the step's forward_end_ns, its collectives as records.COLLECTIVE_FIELDS rows of tokens."""


class BucketProbe:
    """A communication hook that does what DDP does by default, or the named hook does, and stamps its all-reduces.

    The hook runs over a stand-in for the group, so what is stamped is what goes over the wire, with its bytes,
    and not the casting and copying before and after.

    On sampled blocks only and on a wrapper of its own: a hook costs some 0.1 ms of CPU a bucket
    and cannot be removed.

    On CUDA the hook runs in autograd's thread with the compute stream current, so launch is an event
    behind the bucket's last gradient. NCCL's future is complete once the all-reduce is enqueued:
    `.then` runs at once, on a stream of its own that waits for the all-reduce, and an event there is
    its end. Gloo's is complete when the host has the sum, so host time is right there; the copy back
    to the device, still to come, is not in it.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        group: Any,
        group_key: int,
        device: Device,
        comm_hook: str = "none",
    ) -> None:
        self._reduce = None if comm_hook == "none" else reduction(comm_hook, group)
        self.wire: list[int] = []
        """Bytes of each all-reduce of the step that was taken last, in the order of launch."""
        self._group = group
        self._group_key = group_key
        self._size = dist.get_world_size(group)
        self._stamp = device.clock.stamp
        self._stamp_done = device.clock.stamp if dist.get_backend(group) == "nccl" else now_ns
        # DDP keeps its ready times in host time, in which a device's kernels are only queued.
        self._ready = ReadyTimes(ddp) if device.type == "cpu" else None
        self._rows: list[list[int]] = []
        ddp.register_comm_hook(None, self._hook)

    def _hook(
        self,
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if self._reduce is not None:
            return self._reduce(_Stamped(self._group, self._begin, self._stamp_done, bucket.index()), bucket)
        tensor = bucket.buffer()
        # DDP's default multiplies while it copies into the bucket; a hook has to itself.
        tensor.mul_(1 / self._size)
        row = self._begin(bucket.index(), tensor)
        work = dist.all_reduce(tensor, group=self._group, async_op=True)

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            row[3] = self._stamp_done()
            return future.value()[0]

        return work.get_future().then(done)  # type: ignore[no-any-return]

    def _begin(self, bucket: int, tensor: torch.Tensor) -> list[int]:
        """An all-reduce is about to be launched; `bucket` -1: not the first of its bucket."""
        row = [bucket, tensor.numel() * tensor.element_size(), self._stamp(), 0]
        self._rows.append(row)
        return row

    def take(self, forward_end_ns: int) -> list[list[int]]:
        """The step's collectives; empties the store. On a device a bucket is ready when it is launched.

        DDP counts its ready times from a little before `forward_end_ns` is stamped, which can put one
        some 10 us behind the launch it led to: it is held to that. What is not the first of its bucket is
        nothing that a gradient was waited for: 0.
        """
        rows, self._rows = self._rows, []
        self.wire = [row[1] for row in rows]
        ready = dict(enumerate(self._ready.absolute_ns(forward_end_ns))) if self._ready else {}

        def known(bucket: int, launch: int) -> int:
            at = ready.get(bucket, 0) if self._ready else launch
            return 0 if bucket < 0 else min(at, launch)

        return [
            [seq, _ALL_REDUCE, self._group_key, size, known(bucket, launch), launch, done]
            for seq, (bucket, size, launch, done) in enumerate(rows)
        ]


class _Stamped:
    """A process group, as one bucket's hook sees it, whose all-reduces are stamped."""

    def __init__(
        self,
        group: Any,
        begin: Callable[[int, torch.Tensor], list[int]],
        stamp_done: Callable[[], int],
        bucket: int,
    ) -> None:
        self._group, self._begin, self._stamp_done, self._bucket = group, begin, stamp_done, bucket

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Any:
        """As the group's own, which torch.distributed.all_reduce calls; what is empty is not on the wire."""
        if tensors[0].numel() == 0:
            return self._group.allreduce(tensors, options)
        row = self._begin(self._bucket, tensors[0])
        self._bucket = -1
        return _StampedWork(self._group.allreduce(tensors, options), row, self._stamp_done)


class _StampedWork:
    """The work of one all-reduce, whose future comes after its stamp."""

    def __init__(self, work: Any, row: list[int], stamp_done: Callable[[], int]) -> None:
        self._work, self._row, self._stamp_done = work, row, stamp_done

    def get_future(self) -> Any:
        """The tensors, summed, as of the work's own future."""

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
            self._row[3] = self._stamp_done()
            return future.value()

        return self._work.get_future().then(done)


class ReadyTimes:
    """When each bucket's last gradient was there, from the time that DDP itself keeps for every parameter.

    Late by what lies between the end of the module's forward as DDP reads it and as the step does: some 10 us, and
    milliseconds where the rank lost its core in between. Who knows what must have come after holds it to that.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._parameters: list[list[int]] = []

    def absolute_ns(self, forward_end_ns: int) -> list[int]:
        """In the order of reduction. DDP counts from the end of the module's forward; empty while unsettled."""
        if not self._parameters:  # the buckets do not change once they are rebuilt
            self._parameters = bucket_parameters(self._ddp)
        each = self.of_parameters(forward_end_ns)
        return [max(each[i] for i in indices) for indices in self._parameters]

    def of_parameters(self, forward_end_ns: int) -> list[int]:
        """Every parameter's, in the order of registration."""
        return [forward_end_ns + since for since in self._ddp.reducer.get_backward_stats()]


class SoloProbe:
    """Ready times of a wrapper that reduces over one rank: there is no wire, so no launch and no done.

    On the CPU they are DDP's own. On a device a hook on the last parameter of each bucket stamps its
    gradient's end; these hooks are there inside `taking` only, since all arms share the parameters.
    """

    def __init__(self, ddp: DistributedDataParallel, device: Device) -> None:
        self._ddp = ddp
        self._bytes = bucket_bytes(ddp)
        self._ready = ReadyTimes(ddp) if device.type == "cpu" else None
        self._stamp = device.clock.stamp
        self._stamps = [0] * len(self._bytes)
        self._parameters: list[list[int]] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, `take` can be asked after each step."""
        self._parameters = []
        with contextlib.ExitStack() as hooks:
            if self._ready is None:
                parameters = [p for p in self._ddp.module.parameters() if p.requires_grad]
                for index, members in enumerate(bucket_parameters(self._ddp)):
                    # Buckets are rebuilt in the order in which gradients came, so the last comes last.
                    hook = functools.partial(self._note, index)
                    hooks.callback(parameters[members[-1]].register_post_accumulate_grad_hook(hook).remove)
            yield self.take

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        self._stamps[index] = self._stamp()

    def take(self, forward_end_ns: int) -> list[list[int]]:
        """The step's buckets."""
        if self._ready:
            self._parameters.append(self._ready.of_parameters(forward_end_ns))
        ready = self._ready.absolute_ns(forward_end_ns) if self._ready else self._stamps
        return [
            [seq, _ALL_REDUCE, 1, size, at, 0, 0]
            for seq, (size, at) in enumerate(zip(self._bytes, ready, strict=False))
        ]

    def parameters(self, begin_ns: Sequence[int]) -> list[list[int]]:
        """[bytes, ready ns since the step's begin] of every parameter, mean over the last steps taken.

        `begin_ns` is when these steps began. Empty on a device, where DDP knows no ready times.
        """
        taken = self._parameters[-len(begin_ns) :]
        if not taken:
            return []
        begun = sum(begin_ns)
        held = [p for p in self._ddp.module.parameters() if p.requires_grad]
        return [
            [p.numel() * p.element_size(), (sum(stamps) - begun) // len(taken)]
            for p, stamps in zip(held, zip(*taken, strict=True), strict=True)
        ]


def ddp_logging_data(ddp: DistributedDataParallel) -> dict[str, Any]:
    """What DDP says of itself: settings, buckets, times."""
    return dict(ddp._get_ddp_logging_data())  # type: ignore[no-untyped-call]  # noqa: SLF001


def bucket_parameters(ddp: DistributedDataParallel) -> list[list[int]]:
    """Indices of each bucket's parameters, in the order of reduction; empty before DDP's second step."""
    text = str(ddp_logging_data(ddp).get("rebuilt_per_bucket_param_indices") or "")
    return [[int(i) for i in part.split()] for part in text.split(",") if part.strip()]


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets in the order of reduction, bytes; DDP settles them in its second step."""
    data = ddp_logging_data(ddp)
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]
