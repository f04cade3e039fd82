"""See every collective of this process, whoever starts it: DDP, FSDP, SyncBatchNorm, a user's own call.

All of them pass torch's dispatcher as operators of `c10d`, but for those that are made of messages, which tell the tap
(`begin`). While a tap is open it has a kernel for each operator under the key BackendSelect, which every call reaches,
with gradients or without. The kernel notes the call, passes the same arguments on to the back end's kernel, and notes
when the collective is done. The kernels are the process's, so a tap is open in probe blocks only and is removed after
them; `benchmarks/tap.py` shows what a call costs with it and after it.

A stamp is taken on the calling thread: on an accelerator it is an event on the stream that produces the data. The end
is stamped in one of four ways:

- A synchronous call on a back end of the host (Gloo) is waited for in the kernel; its caller would wait at once anyway.
- An asynchronous call there has a future, which calls back when the result is there.
- A synchronous call on an accelerator runs on the current stream or makes that stream wait, so an event behind it does.
- An asynchronous call there runs on its communicator's own stream. Events before and behind it on that stream have its
  kernel between them: the first one says when the stream came to it, which is its start. Where that stream is not known
  (parallel.streams finds it) there is no end: a stream of its own that waits for the collective could hold up others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from scaling.records.format import CollectiveRow
from scaling.settings.run import KINDS
from scaling.worker.accelerator.clock import Clock, now_ns
from scaling.worker.parallel.guard import around, guarded, untraced
from scaling.worker.parallel.strategy import phase_now

HOST_BACKENDS = frozenset({"gloo", "mpi"})
"""Back ends whose collectives end in host time, whatever the device of their tensors is."""

SELECT = torch._C.DispatchKey.BackendSelect  # noqa: SLF001


@dataclass(slots=True, kw_only=True)
class Seen:
    """One collective that this rank took part in. Stamps are tokens of the clock; 0: not taken."""

    kind: int
    """Index into settings.run.KINDS."""
    group: Any
    """Its process group."""
    bytes: int
    """As nccl-tests counts them: the whole result of an all-gather, the whole input of a reduce-scatter."""
    dtype: torch.dtype
    phase: int
    unit: int
    enqueue_ns: int
    """Host time at which the call began."""
    launch: int
    start: int = 0
    """The communicator's own stream came to it."""
    result: int = 0
    """Where its result begins in memory."""
    done: int = 0
    blocking: bool = False
    """Whether the call waits for it."""
    called: bool = False
    """Whether a thread of the back end says when it is done."""
    wait: int = 0
    """The rank, or its compute stream, began to wait for it; 0: nobody told."""
    resume: int = 0
    """It went on."""

    def row(self, seq: int, key: int, **fields: int) -> CollectiveRow:
        """Its row on the communicator `key`, ready when it was launched; `fields`: its other fields."""
        return CollectiveRow(
            seq,
            self.kind,
            key,
            self.bytes,
            self.launch,
            self.launch,
            self.done or self.resume,
            enqueue_ns=self.enqueue_ns,
            start_ns=self.start,
            **fields,
        )


def nbytes_of(value: Any) -> int:
    """Bytes of a tensor, or of all tensors in lists; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(nbytes_of, value)) if isinstance(value, list | tuple) else 0


def _first(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else _first(value[0])


_SIZED_BY = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "broadcast_": ("broadcast", 0),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", 1),
    "scatter_": ("scatter", 0),
}
"""Operator of c10d -> its kind, and the argument whose bytes count."""


class Tap:
    """Notes collectives while it is open. One is open at a time in a process."""

    now: ClassVar[Tap | None] = None
    """The one that is open."""
    streams: ClassVar[dict[str, Any]] = {}
    """By a group's name, the stream on which its asynchronous collectives run; None: not found."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: list[Seen] = []
        self._backends: dict[tuple[str, str], bool] = {}
        """(name of the group, type of device) -> whether its ends are host times."""
        self.phase = 0
        """Index into settings.schedule.PHASES of collectives of a unit from here on."""
        self.unit = -1
        """Bucket or sharded unit of collectives from here on; -1: none."""
        self.bucket = -1
        """Unit of the next collective that sends something, and of no other; -1: that of the others."""

    @contextlib.contextmanager
    def on(self) -> Iterator[Tap]:
        """Note collectives inside, and leave nothing in the dispatcher."""
        self._seen, self.unit, self.bucket, Tap.now = [], -1, -1, self
        library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        try:
            for name, (kind, sized_by) in _SIZED_BY.items():
                operator = getattr(torch.ops.c10d, name).default
                kernel = self._kernel(operator, KINDS.index(kind), sized_by)
                library.impl(name, kernel, "BackendSelect", with_keyset=True)  # type: ignore[no-untyped-call]
            yield self
        finally:
            library._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001
            Tap.now = None

    def take(self) -> list[Seen]:
        """What was noted since the last call, in the order of launch. A `done` may still be missing."""
        seen, self._seen = self._seen, []
        return seen

    @contextlib.contextmanager
    def within(self, unit: int, phase: int) -> Iterator[list[Seen]]:
        """Collectives inside belong to a unit; they are in the list once it ends."""
        before, place, inside = (self.unit, self.phase), len(self._seen), list[Seen]()
        self.unit, self.phase = unit, phase
        try:
            yield inside
        finally:
            self.unit, self.phase = before
            inside += self._seen[place:]

    def waited_for(self, result: int) -> Seen | None:
        """The latest collective with its result at this address that nobody has waited for; None: there is none."""
        return next((call for call in reversed(self._seen) if call.result == result and not call.wait), None)

    def _kernel(self, operator: Any, kind: int, sized_by: int) -> Callable[..., Any]:
        names = [argument.name for argument in operator._schema.arguments]  # noqa: SLF001
        at = names.index("process_group")
        flag = next((name for name in ("async_op", "asyncOp") if name in names), None)
        place = names.index(flag) if flag else -1

        def collective(keys: Any, *args: Any, **named: Any) -> Any:
            return operator.redispatch(keys.remove(SELECT), *args, **named)

        def noting(inner: Callable[..., Any], keys: Any, *args: Any, **named: Any) -> Any:
            # A rank may have nothing to scatter.
            sized = args[sized_by] if nbytes_of(args[sized_by]) else args[0]
            device = _first(sized).device
            group = dist.ProcessGroup.unbox(args[at])
            seen = self._noted(kind, group, sized, _first(args[0] if nbytes_of(args[0]) else sized))
            waits = flag is not None and not (args[place] if len(args) > place else named.get(flag, True))
            seen.blocking = waits
            if not waits:
                self._stamp_start(seen, device)
            result = inner(keys, *args, **named)
            self._stamp_end(seen, _work(result), waits=waits, device=device)
            return result

        # A model that torch.compile made calls it in forward (DDP's broadcast of buffers), where it would be traced.
        return untraced(around(collective, noting))

    def _noted(self, kind: int, group: Any, sized: Any, result: torch.Tensor) -> Seen:
        """Note a collective that begins now. `sized`: the tensor, or lists of tensors, whose bytes count."""
        nbytes, unit = nbytes_of(sized), self.unit
        if nbytes and self.bucket >= 0:
            unit, self.bucket = self.bucket, -1
        seen = Seen(
            kind=kind,
            group=group,
            bytes=nbytes,
            dtype=_first(sized).dtype,
            phase=self.phase if self.unit >= 0 else phase_now(),
            unit=unit,
            enqueue_ns=now_ns(),
            launch=self._clock.stamp(),
            result=result.data_ptr(),
        )
        self._seen.append(seen)
        return seen

    def begin(
        self, kind: str, begin: Callable[[], dist.Work], group: Any, sized: torch.Tensor, *, waits: bool
    ) -> dist.Work:
        """Begin and note a collective that is made of messages. `sized`: whose bytes count; `waits`: wait for it."""
        seen = self._noted(KINDS.index(kind), group, sized, sized)
        if waits and self._of_host(group, sized.device):
            seen.wait = now_ns()  # to begin may take until an earlier one is done
        work = begin()
        self._stamp_end(seen, work, waits=waits, device=sized.device)
        return work

    def _stamp_start(self, seen: Seen, device: torch.device) -> None:
        """On the communicator's stream, once it has waited for the data as the collective will."""
        stream = self.streams.get(seen.group.group_name)
        if stream is not None and not self._of_host(seen.group, device):
            seen.start = self._clock.stamp_on(stream, behind=seen.launch)

    def _stamp_end(self, seen: Seen, work: Any, *, waits: bool, device: torch.device) -> None:
        host = self._of_host(seen.group, device)
        if waits and not host:
            seen.done = self._clock.stamp()
            return
        if work is None:
            return
        if waits:
            seen.wait = seen.wait or now_ns()
            work.wait()
            seen.done = seen.resume = now_ns()
            return
        if not host:
            if seen.start:
                seen.done = self._clock.stamp_on(self.streams[seen.group.group_name])
            return

        def done(_future: Any) -> None:
            seen.done = now_ns()

        with contextlib.suppress(RuntimeError):  # the work of some collectives has no future
            work.get_future().add_done_callback(guarded(done))
            seen.called = True

    def _of_host(self, group: Any, device: torch.device) -> bool:
        key = (group.group_name, device.type)
        if key not in self._backends:
            self._backends[key] = backend_of(group, device.type) in HOST_BACKENDS
        return self._backends[key]


def _work(result: Any) -> Any:
    """The work that an operator returned, alone or behind its tensors; None where there is none."""
    boxed = result[-1] if isinstance(result, tuple) else result
    return None if boxed is None else dist.Work.unbox(boxed)


def backend_of(group: Any, device: str) -> str:
    """The back end that reduces tensors of a device. The group's name may be `undefined` or `cpu:gloo,cuda:nccl`."""
    return str(group._get_backend(torch.device(device)).name())  # noqa: SLF001
