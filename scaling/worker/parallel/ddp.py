"""Build the module that is trained over a group with DDP, and name what it and its layers send.

Communication hooks are torch's own, which tell a tap whose bucket they send.

A layer of SyncBatchNorm gathers its mean and variance from all ranks in forward and adds up two sums over them in
backward. torch makes these calls without async_op (torch/nn/modules/_functions.py), so the current stream goes on when
the result is there. Over one rank a layer does what BatchNorm does and calls nothing.

A module with buffers (BatchNorm's running statistics) takes part in a broadcast from its first rank at the begin of
every forward that follows a reduced backward. Ranks wait for each other there, so a late rank shows in forward and not
at the first bucket (parallel.waits.Broadcasts).

A detailed block records DDP's buckets, found among the collectives that a tap saw. A rank waits for them behind
backward. Where layers wait for other ranks too, it waits in many places, as a sharded one does. Each row then says when
its rank, or its stream, began to wait for it and went on.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.settings.run import DEFAULT_BUCKET_MB, KINDS, Ddp
from scaling.settings.schedule import PHASES, Message
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.models.options import compiled
from scaling.worker.parallel.strategy import BUFFERS, FORWARD, Behind, Detail, Wait
from scaling.worker.parallel.tap import Seen, Tap
from scaling.worker.parallel.torch_private import logging_data, rebuild_buckets
from scaling.worker.parallel.waits import Waits

WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Type of the elements that are sent, where it is not that of the gradients."""
POWER_SGD_START = 2
"""Steps before PowerSGD compresses: the minimum, since DDP settles its buckets in the second step."""


def register(ddp: DistributedDataParallel, name: str, group: Any) -> None:
    """Make a wrapper reduce its buckets over a group with the named hook; `none` leaves it unchanged."""
    if name == "none":
        return
    state: Any = group
    reduce: Any = fp16_compress_hook if name == "fp16" else bf16_compress_hook
    # PowerSGD starts each all-reduce, and waits for it, in the callback of another. On NCCL callbacks run in the hook's
    # thread. On Gloo they run in its two threads, in an order that differs between ranks; both can wait, and it hangs.
    one_by_one = name == "powersgd" and dist.get_backend(group) == "gloo"
    if name == "powersgd":  # it keeps state between steps
        reduce = powerSGD_hook
        state = PowerSGDState(
            process_group=group, matrix_approximation_rank=1, start_powerSGD_iter=POWER_SGD_START
        )

    # torch rejects bf16_compress_hook by its name without NCCL, though Gloo sums bf16, so wrap it.
    def hook(over: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
        if Tap.now is not None:
            Tap.now.bucket = bucket.index()
        future: torch.futures.Future[torch.Tensor] = reduce(over, bucket)
        if one_by_one:
            future.wait()
        return future

    hook.__annotations__ = {}  # DDP checks them by identity, and postponed ones are text
    ddp.register_comm_hook(state, hook)


_GATHER, _REDUCE, _BROADCAST = map(KINDS.index, ("all_gather", "all_reduce", "broadcast"))
_OTHER = PHASES.index("other")


class Norms:
    """The SyncBatchNorm layers of a module; there may be none."""

    def __init__(self, module: nn.Module) -> None:
        self._layers = [layer for layer in module.modules() if isinstance(layer, nn.SyncBatchNorm)]

    def __len__(self) -> int:
        return len(self._layers)

    def over(self, group: Any) -> None:
        """Take statistics over the ranks of a process group from here on."""
        for layer in self._layers:
            layer.process_group = group

    def are_over(self, group: Any) -> bool:
        """Whether all of them take statistics over the ranks of this process group."""
        return all((layer.process_group or dist.group.WORLD) is group for layer in self._layers)

    def sent(self, ranks: int) -> frozenset[tuple[int, int]]:
        """What they send over so many ranks: kind, and elements of the result.

        A rank's means, inverse deviations and count in forward; in backward two sums a channel.
        """
        gathered = {(_GATHER, ranks * (2 * layer.num_features + 1)) for layer in self._layers}
        return frozenset(gathered | {(_REDUCE, 2 * layer.num_features) for layer in self._layers})


_SAMPLED_FIRST = 10
"""DDP takes statistics in so many first forwards, and waits for the device there (reducer.cpp)."""
_NEVER = 2**31 - 1


class Bare:
    """A workload's module without a strategy. It is compiled once for each use, since each has graphs of its own."""

    def __init__(self, module: torch.nn.Module, *, alone: dist.ProcessGroup, compiles: bool) -> None:
        """`alone`: the group of this rank itself, over which the module's norms go."""
        self._module, self._alone, self._compiles = module, alone, compiles
        self.norms = Norms(module)
        self._compiled: dict[str, torch.nn.Module] = {}

    def module(self, use: str) -> torch.nn.Module:
        """The module for a use."""
        self.norms.over(self._alone)
        if not self._compiles:
            return self._module
        if use not in self._compiled:
            self._compiled[use] = compiled(self._module)
        return self._compiled[use]


def wrap(
    module: torch.nn.Module, settings: Ddp, group: dist.ProcessGroup, *, sync: bool = True
) -> DistributedDataParallel:
    """The module as DDP over a group, without a communication hook. `sync`: as Strategy.apply has it."""
    return DistributedDataParallel(
        module,
        process_group=group,
        # Given a number, DDP also sizes its first bucket by it. Only None keeps its default of 1 MiB there.
        bucket_cap_mb=None if settings.bucket_cap_mb == DEFAULT_BUCKET_MB else settings.bucket_cap_mb,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        static_graph=settings.static_graph,
        find_unused_parameters=settings.find_unused_parameters,
        init_sync=sync,
    )


def settings_of(ddp: DistributedDataParallel) -> Ddp:
    """What a wrapper of anyone's was made with."""
    return Ddp(
        bucket_cap_mb=ddp.bucket_bytes_cap / 2**20,
        gradient_as_bucket_view=bool(ddp.gradient_as_bucket_view),
        static_graph=bool(ddp.static_graph),
        find_unused_parameters=bool(ddp.find_unused_parameters),
        comm_hook="own" if has_own_hook(ddp) else "none",
    )


def settle(ddp: DistributedDataParallel) -> None:
    """After a new wrapper's first steps (settings.schedule.settling_steps): make it like one that has trained for long.

    It makes its buckets in the order of the gradients now, as all ranks do, where it would do so at the next forward.
    It says what they are, and takes no statistics again. DDP takes them in its first ten forwards and in every
    hundredth, and waits for the device there, which a measured step must not. A forward is counted where it is
    prepared.
    """
    assert ddp.logger is not None
    rebuild_buckets(ddp)
    ddp.logger.set_runtime_stats_and_log()
    ddp._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]  # noqa: SLF001
    for _ in range(_SAMPLED_FIRST):
        ddp.reducer.prepare_for_forward()


def bucket_parameters(ddp: DistributedDataParallel) -> list[list[int]]:
    """Indices of each bucket's parameters, in the order of reduction; empty before DDP's second step."""
    text = str(logging_data(ddp).get("rebuilt_per_bucket_param_indices") or "")
    return [[int(i) for i in part.split()] for part in text.split(",") if part.strip()]


def bucket_bytes(ddp: DistributedDataParallel) -> list[int]:
    """Sizes of the buckets in the order of reduction, bytes. DDP settles them in its second step."""
    data = logging_data(ddp)
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return [int(size) for size in str(text).split(",") if size.strip()]


def has_own_hook(ddp: DistributedDataParallel) -> bool:
    """Whether a communication hook was registered."""
    return bool(getattr(ddp, "_comm_hooks", None))


def accumulating(module: torch.nn.Module) -> Callable[[bool], contextlib.AbstractContextManager[Any]]:
    """Around a micro-step, given whether it is the last: DDP reduces nothing before that. Other modules never do."""
    if not isinstance(module, DistributedDataParallel):
        return lambda _last: contextlib.nullcontext()
    return lambda last: contextlib.nullcontext() if last else module.no_sync()


def sends_buffers(module: torch.nn.Module) -> bool:
    """Whether this is a DDP wrapper of two or more ranks that keeps buffers alike."""
    return (
        isinstance(module, DistributedDataParallel)
        and dist.get_world_size(module.process_group) > 1
        and bool(module.broadcast_buffers)
        and any(True for _ in module.buffers())
    )


Ready = Callable[[int], Sequence[int]]
"""Given the host time at which the last forward ended, when each bucket was ready, ns; empty: not known."""

STAMPS_A_LAYER = 8
"""Launch and end of a layer's collective in forward and of that in backward, and begin and end of both waits."""
OF_NORMS = -2
"""Unit of what layers inside send, until the wrapper's buckets are counted."""


class BucketDetail(Detail):
    """The all-reduces of one wrapper's gradients in a detailed block. A tap is open meanwhile.

    DDP launches its buckets in their order, so the next one is the next all-reduce over its group that has the bucket's
    size and type. A hook may send something else instead; then every all-reduce over the group counts. The named hooks
    say whose bucket they send.
    """

    def __init__(
        self,
        ddp: DistributedDataParallel,
        tap: Tap,
        ready: Ready | None = None,
        key: int | None = None,
        norms: Norms | None = None,
        waits: Waits | None = None,
    ) -> None:
        """`ready`: None where a bucket counts as ready when it is launched. `key`: of the group; None: its size.

        `norms`: layers inside that wait for other ranks; what they send is a unit behind the buckets. `waits`: as
        `Detail` takes it.
        """
        super().__init__(waits)
        ranks = dist.get_world_size(ddp.process_group)
        self._ddp, self._tap, self._ready = weakref.ref(ddp), tap, ready  # the loop alone keeps the wrapper
        self._name, self._key = ddp.process_group.group_name, ranks if key is None else key
        self._norms, self._layers = norms.sent(ranks) if norms else frozenset(), len(norms or ())
        self._hooked = has_own_hook(ddp)
        self._count = max(1, len(bucket_bytes(ddp)))
        self._sizes: list[int] = []
        """Bytes of the buckets, once a step was recorded."""
        self._types = {parameter.dtype for parameter in ddp.parameters()}
        self._buffers_bytes = sum(b.nbytes for b in ddp.module.buffers()) if sends_buffers(ddp) else 0

    def _seeing(self) -> contextlib.AbstractContextManager[Any]:
        return self._tap.on()

    def _rows(self, forward_end_ns: int) -> list[CollectiveRow]:
        rows = self._all(self._tap.take(), self._ready(forward_end_ns) if self._ready else ())
        if self._layers:
            rows = _in_order(_units(rows, self._count))
            self.wire = self._messages(rows)
        else:
            self.wire = [Message(row.kind, row.bytes) for row in rows if row.phase != _OTHER]
        return rows

    def _all(self, seen: Sequence[Seen], ready: Sequence[int]) -> list[CollectiveRow]:
        """The step's buckets, with tokens as stamps, and then the collectives that are not DDP's.

        A bucket counts as ready when it is launched, or by `ready`, host times that may be a little late. An all-reduce
        of a hook that is not the first of its bucket waited for no gradient; its ready time is 0. DDP's broadcasts of
        buffers are left out: they are stamped where they are waited for.
        """
        if self._key == 1:
            return []
        ours = [call for call in seen if call.group.group_name == self._name]
        sizes = ((call, (call.kind, call.bytes // call.dtype.itemsize)) for call in ours if call.blocking)
        inside = [call for call, size in sizes if size in self._norms]
        ids = set(map(id, inside))
        reductions = [c for c in ours if c.kind == _REDUCE and c.bytes and id(c) not in ids]
        if not self._hooked:
            reductions = self._reductions(reductions)
        for call in reductions:
            if call.called and not call.done:  # backward has returned, and a thread has yet to say so
                call.done = now_ns()
        ids |= {id(call) for call in (*reductions, *(call for call in ours if call.kind == _BROADCAST))}
        others = [call for call in seen if id(call) not in ids and call.bytes]
        buckets = [call.row(seq, self._key, unit=call.unit) for seq, call in enumerate(reductions)]
        rows = [call.row(seq, self._key, phase=_OTHER) for seq, call in enumerate(others, len(buckets))]
        rows = [row._replace(ready_ns=0, done_ns=row.done_ns or row.launch_ns) for row in rows]
        norms = [call.row(0, self._key, phase=call.phase, unit=OF_NORMS) for call in inside]
        norms = [row._replace(wait_ns=row.launch_ns, resume_ns=row.done_ns) for row in norms]
        return [*_by_bucket(buckets, ready), *rows, *norms]

    def _reductions(self, seen: Sequence[Seen]) -> list[Seen]:
        matches = self._matching(seen)
        if not matches or len(matches) % len(self._sizes):  # DDP has made its buckets anew
            ddp = self._ddp()
            self._sizes = [] if ddp is None else bucket_bytes(ddp)
            matches = self._matching(seen)
        for place, call in enumerate(matches):
            call.unit = place % len(self._sizes)
        return matches

    def _matching(self, seen: Sequence[Seen]) -> list[Seen]:
        matches: list[Seen] = []
        for call in seen if self._sizes else ():
            if call.bytes == self._sizes[len(matches) % len(self._sizes)] and call.dtype in self._types:
                matches.append(call)
        return matches

    def _messages(self, rows: Sequence[CollectiveRow]) -> list[Message]:
        """What a step sends: buffers at its begin, and behind each reduction of all buckets but the last."""
        messages: list[Message] = []
        due, reduced = self._buffers_bytes > 0, 0
        for row in rows:
            if due:
                messages.append(Message(_BROADCAST, self._buffers_bytes))
            messages.append(Message(row.kind, row.bytes))
            first = row.unit < self._count and row.ready_ns != 0  # of a bucket's messages
            reduced += first
            due = first and self._buffers_bytes > 0 and reduced % self._count == 0
        return messages

    def all_of(
        self, rows: Sequence[CollectiveRow], behind: Behind, waits: Sequence[Wait]
    ) -> list[CollectiveRow]:
        """The rows with the broadcasts of buffers; where layers wait, with where the rank waits for its buckets."""
        size, first = self._buffers_bytes, len(rows)
        sent = [
            CollectiveRow(first + k, _BROADCAST, self._key, size, 0, wait.begin, wait.end, phase=FORWARD)
            for k, wait in enumerate(wait for wait in waits if wait.phase == BUFFERS)
        ]
        if not self._layers:
            return [*rows, *sent]
        waited = [
            row._replace(wait_ns=_behind(row, behind), resume_ns=row.done_ns)
            if 0 <= row.unit < self._count
            else row
            for row in rows
        ]
        for row in sent:
            begin, unit = row.launch_ns, self._count + 1
            waited.append(row._replace(ready_ns=begin, unit=unit, wait_ns=begin, resume_ns=row.done_ns))
        return _in_order(waited)

    @property
    def stamps(self) -> int:
        """Launch, start and end of each bucket, and those of the layers and of the buffers' broadcast."""
        inside = 2 * (self._buffers_bytes > 0) + STAMPS_A_LAYER * self._layers
        return inside + 3 * max(self._count, len(self.wire))


def _behind(row: CollectiveRow, behind: Behind) -> int:
    """Where the rank waits for a bucket: at the end of the compute of the backward that launched it."""
    launch = abs(row.launch_ns)  # tokens of events fall, host times rise
    return next((computed for computed, whole in behind if abs(whole) >= launch), 0)


def _units(rows: Sequence[CollectiveRow], count: int) -> list[CollectiveRow]:
    """The rows with their buckets, of which there are `count`, as units, and layers' behind them; others have none.

    Further messages of a hook are of the bucket before them. Rows that name no bucket are in the order of buckets.
    """
    named, place = any(row.unit >= 0 for row in rows), -1
    numbered: list[CollectiveRow] = []
    for row in rows:
        if row.phase == _OTHER or row.unit == OF_NORMS:
            numbered.append(row if row.phase == _OTHER else row._replace(unit=count))
            continue
        place = row.unit if row.unit >= 0 else place if named else (place + 1) % count
        numbered.append(row._replace(unit=place))
    return numbered


def _in_order(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """By their launch, and behind them what is not the module's: tokens of events fall, host times rise."""
    ordered = sorted(rows, key=lambda row: (row.unit < 0, abs(row.launch_ns)))
    return [row._replace(seq=seq) for seq, row in enumerate(ordered)]


def _by_bucket(rows: Sequence[CollectiveRow], ready: Sequence[int]) -> Iterator[CollectiveRow]:
    """The rows with when their buckets were ready."""
    named = any(row.unit >= 0 for row in rows)
    for row in rows:
        if named and row.unit < 0:
            yield row._replace(ready_ns=0)
        elif 0 <= row.unit < len(ready):
            yield row._replace(ready_ns=min(ready[row.unit], row.launch_ns))
        else:
            yield row
