"""Stamp DDP's own all-reduces, bucket by bucket, and find when each bucket was ready."""

# No postponed annotations here: DDP checks a hook's annotations by identity.

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.spec.run import COLLECTIVES
from scaling.spec.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.compression import reduction
from scaling.worker.parallel.ddp import bucket_bytes, bucket_parameters
from scaling.worker.parallel.tap import HOST_BACKENDS, backend_of

_ALL_REDUCE = COLLECTIVES.index("all_reduce")

Take = Callable[[int], list[CollectiveRow]]
"""Given the step's forward_end_ns, returns its collectives, with tokens as stamps."""


class BucketProbe:
    """A communication hook that stamps its all-reduces. Otherwise it does what DDP, or the named hook, does.

    The named hook runs over a stand-in for the group. So the stamps and bytes are those of the transfer itself,
    without the casting and copying around it.

    It is used on sampled blocks only and on a separate wrapper, since a hook costs some 0.1 ms of CPU per bucket and
    cannot be removed.

    On CUDA the hook runs in autograd's thread with the compute stream current, so launch is an event behind the
    bucket's last gradient. NCCL's future is complete once the all-reduce is enqueued: `.then` runs at once, on a
    stream that waits for the all-reduce, and an event there marks its end. Gloo's future is complete when the host
    has the sum, so host time is right there; the copy back to the device comes later and is not included.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        group: Any,
        group_key: int,
        device: Accelerator,
        comm_hook: str = "none",
    ) -> None:
        self._reduce = None if comm_hook == "none" else reduction(comm_hook, group)
        self.wire: list[int] = []
        """Bytes of each all-reduce of the step taken last, in the order of launch."""
        self._group = group
        self._group_key = group_key
        self._size = dist.get_world_size(group)
        self._stamp = device.clock.stamp
        host = backend_of(group, device.type) in HOST_BACKENDS
        self._stamp_done = now_ns if host else device.clock.stamp
        # A device's back ends average, as fully_shard has them do it. Gloo does not.
        self._op = dist.ReduceOp.SUM if host else dist.ReduceOp.AVG
        # DDP keeps its ready times in host time, when a device's kernels are only queued.
        self._ready = ReadyTimes(ddp) if device.type == CPU else None
        self._rows: list[list[int]] = []
        ddp.register_comm_hook(None, self._hook)

    def discard(self) -> None:
        """Forget the collectives so far."""
        self._rows = []

    def _hook(
        self,
        _state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if self._reduce is not None:
            return self._reduce(_Stamped(self._group, self._begin, self._stamp_done, bucket.index()), bucket)
        tensor = bucket.buffer()
        # DDP's default divides while it copies into the bucket; a hook has to do it itself. A kernel of its own would
        # make a step longer that waits for its launches.
        if self._op == dist.ReduceOp.SUM:
            tensor.mul_(1 / self._size)
        row = self._begin(bucket.index(), tensor)
        work = dist.all_reduce(tensor, self._op, group=self._group, async_op=True)

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            row[3] = self._stamp_done()
            return future.value()[0]

        return work.get_future().then(done)  # type: ignore[no-any-return]

    def _begin(self, bucket: int, tensor: torch.Tensor) -> list[int]:
        """Note an all-reduce that is about to be launched; `bucket` is -1 if it is not the first of its bucket."""
        row = [bucket, tensor.numel() * tensor.element_size(), 0, 0, now_ns()]
        row[2] = self._stamp()
        self._rows.append(row)
        return row

    def take(self, forward_end_ns: int) -> list[CollectiveRow]:
        """Return the step's collectives and forget them. On a device a bucket is ready when it is launched.

        DDP counts its ready times from a little before `forward_end_ns` is stamped. That can put one some 10 us after
        the launch it led to, so it is clamped to the launch. An all-reduce that is not the first of its bucket waited
        for no gradient; its ready time is 0.
        """
        rows, self._rows = self._rows, []
        self.wire = [row[1] for row in rows]
        ready = dict(enumerate(self._ready.absolute_ns(forward_end_ns))) if self._ready else {}

        def known(bucket: int, launch: int) -> int:
            at = ready.get(bucket, 0) if self._ready else launch
            return 0 if bucket < 0 else min(at, launch)

        return [
            CollectiveRow(
                seq=seq,
                kind=_ALL_REDUCE,
                group=self._group_key,
                bytes=size,
                ready_ns=known(bucket, launch),
                launch_ns=launch,
                done_ns=done,
                enqueue_ns=enqueue,
                unit=bucket,
            )
            for seq, (bucket, size, launch, done, enqueue) in enumerate(rows)
        ]


class _Stamped:
    """A stand-in for the process group, given to one bucket's hook, that stamps all-reduces."""

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
        """Stamp and forward the call that torch.distributed.all_reduce makes; an empty tensor is not sent."""
        if tensors[0].numel() == 0:
            return self._group.allreduce(tensors, options)
        row = self._begin(self._bucket, tensors[0])
        self._bucket = -1
        return _StampedWork(self._group.allreduce(tensors, options), row, self._stamp_done)


class _StampedWork:
    """The work of one all-reduce. Its future is complete once the end is stamped."""

    def __init__(self, work: Any, row: list[int], stamp_done: Callable[[], int]) -> None:
        self._work, self._row, self._stamp_done = work, row, stamp_done

    def get_future(self) -> Any:
        """A future of the summed tensors, like that of the work itself."""

        def done(future: torch.futures.Future[list[torch.Tensor]]) -> list[torch.Tensor]:
            self._row[3] = self._stamp_done()
            return future.value()

        return self._work.get_future().then(done)


class ReadyTimes:
    """When each bucket's last gradient was computed, from the time that DDP keeps for every parameter.

    The times are late by the gap between DDP's and the step's reading of the end of forward: some 10 us, or
    milliseconds where the rank lost its core in between. Callers clamp them to any later event they know.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        # Weak: the wrapper holds its hook, the hook its probe. No collector sees that circle, which lies partly in C++.
        self._ddp = weakref.ref(ddp)
        self._parameters: list[list[int]] = []

    def absolute_ns(self, forward_end_ns: int) -> list[int]:
        """Ready times of the buckets in the order of reduction; empty before DDP's second step."""
        if not self._parameters:  # the buckets do not change once they are rebuilt
            self._parameters = bucket_parameters(_alive(self._ddp))
        each = self.of_parameters(forward_end_ns)
        return [max(each[i] for i in indices) for indices in self._parameters]

    def of_parameters(self, forward_end_ns: int) -> list[int]:
        """Ready time of every parameter, in the order of registration. DDP counts from the end of forward."""
        return [forward_end_ns + since for since in _alive(self._ddp).reducer.get_backward_stats()]


def _alive(ddp: "weakref.ref[DistributedDataParallel]") -> DistributedDataParallel:
    found = ddp()
    assert found is not None, "the wrapper is gone"
    return found


class SoloProbe:
    """Ready times of a wrapper that reduces over one rank. Nothing is sent, so launch and done are 0.

    On the CPU they come from DDP. On a device a hook on the last parameter of each bucket stamps its gradient's end;
    these hooks exist inside `taking` only, since all arms share the parameters.
    """

    def __init__(self, ddp: DistributedDataParallel, device: Accelerator) -> None:
        self._ddp = weakref.ref(ddp)
        self._bytes = bucket_bytes(ddp)
        self._ready = ReadyTimes(ddp) if device.type == CPU else None
        self._stamp = device.clock.stamp
        self._stamps = [0] * len(self._bytes)
        self._parameters: list[list[int]] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, `take` can be called after each step."""
        self._parameters = []
        with contextlib.ExitStack() as hooks:
            if self._ready is None:
                parameters = [p for p in _alive(self._ddp).module.parameters() if p.requires_grad]
                for index, members in enumerate(bucket_parameters(_alive(self._ddp))):
                    # DDP rebuilds buckets in the order of the gradients, so the last parameter is ready last.
                    hook = functools.partial(self._note, index)
                    hooks.callback(parameters[members[-1]].register_post_accumulate_grad_hook(hook).remove)
            yield self.take

    def _note(self, index: int, _parameter: torch.Tensor) -> None:
        self._stamps[index] = self._stamp()

    def take(self, forward_end_ns: int) -> list[CollectiveRow]:
        """The buckets of the step that has just ended: none was ready later than now."""
        over = now_ns()
        if self._ready:
            self._parameters.append(self._ready.of_parameters(forward_end_ns))
        ready = (
            [min(at, over) for at in self._ready.absolute_ns(forward_end_ns)] if self._ready else self._stamps
        )
        return [
            CollectiveRow(seq=seq, kind=_ALL_REDUCE, group=1, bytes=size, ready_ns=at, launch_ns=0, done_ns=0)
            for seq, (size, at) in enumerate(zip(self._bytes, ready, strict=False))
        ]

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:
        """(bytes, ready ns since the step's begin) of every parameter, mean over the last steps taken.

        `begin_ns` is when these steps began. Empty on a device, where DDP knows no ready times.
        """
        taken = self._parameters[-len(begin_ns) :]
        if not taken:
            return []
        begun = sum(begin_ns)
        held = [p for p in _alive(self._ddp).module.parameters() if p.requires_grad]
        return [
            (p.numel() * p.element_size(), (sum(stamps) - begun) // len(taken))
            for p, stamps in zip(held, zip(*taken, strict=True), strict=True)
        ]
