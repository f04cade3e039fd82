"""Train a module of which every rank holds a copy: DistributedDataParallel, behind the seam of strategies.

What the stamped blocks of a DDP wrapper record whose module waits for ranks inside its forward and backward.

A rank then waits in many places, as a sharded one does: at each collective of the module, behind backward for its
buckets, and at the begin of forward for the broadcast of buffers. Each row says when its rank, or its stream, began to
wait for it and went on.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.settings.run import KINDS, Spec
from scaling.settings.schedule import PHASES, Message
from scaling.settings.topology import CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.measure.probe import ReadyTimes, SoloProbe
from scaling.worker.parallel.buckets import OF_NORMS, BucketDetail, done_by
from scaling.worker.parallel.computed import share_bytes
from scaling.worker.parallel.ddp import Wrapping, accumulating, bucket_bytes, settle
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.strategy import BUFFERS, Detail, Edges, Take, Taken
from scaling.worker.parallel.streams import find, rewind, withheld
from scaling.worker.parallel.tap import Tap
from scaling.worker.parallel.waits import Norms, Waits, broadcast_rows, sends_buffers

_BROADCAST, _OTHER = KINDS.index("broadcast"), PHASES.index("other")
STAMPS_A_LAYER = 8
"""Launch and end of a layer's collective in forward and of that in backward, and begin and end of both waits."""


class InlineProbe(Detail):
    """The stamps of one arm over several ranks. The module's own collectives are a unit behind the buckets."""

    def __init__(
        self,
        waits: Waits | None,
        buckets: Detail | None,
        ddp: DistributedDataParallel,
        *,
        layers: int,
    ) -> None:
        """`waits`: tells the steps' waits; None: another does. `layers`: that send something.

        `buckets`: what a detailed block records of them, with the layers' collectives; None in a light one.
        """
        super().__init__()
        self._waits, self._buckets, self._layers = waits, buckets, layers
        self._ddp = weakref.ref(ddp)  # the loop alone keeps the wrapper
        self._count = len(bucket_bytes(ddp))
        self._buffers_bytes = sum(b.nbytes for b in ddp.module.buffers()) if sends_buffers(ddp) else 0

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, the module's own collectives are stamped, and in a detailed block the buckets."""
        buckets = self._buckets.taking() if self._buckets else contextlib.nullcontext()
        with self._waits.on() if self._waits else contextlib.nullcontext(), buckets as take:
            yield functools.partial(self._take, take)

    def _take(self, take: Take | None, forward_end_ns: int) -> Taken:
        waits = [wait for wait in self._waits.take() if wait.phase != BUFFERS] if self._waits else []
        if take is None:
            return Taken(None, waits, waits_behind=True)
        rows = _in_order(_units(take(forward_end_ns).collectives or [], self._count))
        self.wire = self._messages(rows)
        return Taken(rows, waits, waits_behind=True)

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

    def all_of(self, rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:
        """The rows with the broadcasts of buffers, and with where the rank waits for its buckets."""
        complete = [
            row._replace(wait_ns=_behind(row, edges), resume_ns=row.done_ns)
            if 0 <= row.unit < self._count
            else row
            for row in done_by(rows, edges)
        ]
        ddp = self._ddp()
        sent = () if ddp is None else broadcast_rows(ddp, edges.broadcasts, 0)
        complete += [
            row._replace(
                ready_ns=row.launch_ns, unit=self._count + 1, wait_ns=row.launch_ns, resume_ns=row.done_ns
            )
            for row in sent
        ]
        return _in_order(complete)

    def discard(self) -> None:
        """Forget the steps so far."""
        if self._waits:
            self._waits.take()
        if self._buckets is not None:
            self._buckets.discard()

    @property
    def stamps(self) -> int:  # type: ignore[override]
        """Stamps of the layers and the buckets."""
        return STAMPS_A_LAYER * self._layers + 3 * self._count


def _behind(row: CollectiveRow, edges: Edges) -> int:
    """Where the rank waits for a bucket: at the end of the compute of the backward that launched it."""
    launch = abs(row.launch_ns)  # tokens of events fall, host times rise
    return next((computed for computed, whole in edges.behind if abs(whole) >= launch), 0)


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


class Replicas:
    """DDP over a trial's group, or over a group of one rank. It trains the workload's own parameters."""

    steps_alone = True

    def __init__(
        self,
        spec: Spec,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        group: Group,
        solo: Group,
        device: Accelerator,
    ) -> None:
        self._wrapping = Wrapping(module, spec.ddp, alone=solo.data, compiles=spec.compile)
        self._whole, self._norms = module, Norms(module)
        self._optimizer, self._group, self._solo, self._device = optimizer, group, solo, device
        self._views = spec.ddp.gradient_as_bucket_view
        self.wire_dtype = self._wrapping.wire_dtype
        self.module = self._wrapping.module

    def apply(self, use: str, *, alone: bool, sync: bool = True) -> Replicated:
        """A new wrapper."""
        group = self._solo if alone else self._group
        rewind(self._device)
        ddp = self._wrapping.over(group.data, use, sync=sync)
        norms = self._norms if not alone and len(self._norms) else None  # over one rank they call nothing
        return Replicated(ddp, self._optimizer, group, self._device, norms, alone=alone)

    def free(self) -> None:
        """A wrapper goes with its last reference."""

    def computed(self, optimizer: torch.optim.Optimizer) -> dict[str, int]:
        """All of the model; gradients that are no views of their buckets lie beside them."""
        sizes = share_bytes(self._whole, optimizer, 1, 0)
        sizes["gradients"] *= 1 if self._views else 2
        return sizes


class Replicated:
    """A wrapper as the loop trains it."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        group: Group,
        device: Accelerator,
        norms: Norms | None,
        *,
        alone: bool,
    ) -> None:
        """`norms`: layers that wait for other ranks. `alone`: over one rank."""
        self.module: torch.nn.Module = ddp
        self.optimizer, self._group, self._device = optimizer, group, device
        self.accumulate: Callable[[bool], contextlib.AbstractContextManager[Any]] = accumulating(ddp)
        self._norms, self._alone = norms, alone

    @property
    def _ddp(self) -> DistributedDataParallel:
        assert isinstance(self.module, DistributedDataParallel)
        return self.module

    @property
    def buckets(self) -> list[int]:
        """Bytes of the buckets in the order of reduction."""
        return bucket_bytes(self._ddp)

    @property
    def units(self) -> list[str]:
        return [f"bucket {k}" for k in range(len(self.buckets))]

    def settle(self) -> None:
        """Make the buckets in the order of the gradients."""
        settle(self._ddp)

    def withheld(self) -> str:
        """Nothing but the stream of its communicator is stamped."""
        find([self._group.data], self._device)
        return withheld([self._group.data], (), self._device)

    def detail(self, *, detailed: bool) -> Detail | None:
        """The buckets of detailed blocks, and in every stamped one where the module waits inside."""
        if self._alone:
            return _Solo(SoloProbe(self._ddp, self._device), len(self.buckets)) if detailed else None
        tap = Tap(self._device.clock)
        ready = ReadyTimes(self._ddp).absolute_ns if detailed and self._device.type == CPU else None
        sent = frozenset() if self._norms is None else self._norms.sent(dist.get_world_size(self._group.data))
        buckets = BucketDetail(self._ddp, tap, ready, self._group.key, sent) if detailed else None
        if self._norms is None:
            return buckets
        return InlineProbe(Waits(self._device), buckets, self._ddp, layers=len(self._norms))

    def bytes(self) -> dict[str, int]:
        """Every rank holds everything. Gradients that are no views of their buckets lie beside them."""
        sizes = held_bytes(self.module, self.optimizer)
        if not self._ddp.gradient_as_bucket_view:
            sizes["gradients"] += sum(self.buckets)
        return sizes


class _Solo(Detail):
    """The buckets of a wrapper over one rank, which sends nothing."""

    def __init__(self, probe: SoloProbe, count: int) -> None:
        super().__init__()
        self._probe, self.stamps = probe, count

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        with self._probe.taking() as take:
            yield lambda forward_end_ns: Taken(take(forward_end_ns), None)

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:
        return self._probe.parameters(begin_ns)


def held_bytes(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes that this rank holds of parameters and buffers, of gradients, and of the optimizer's states."""

    def local(tensor: torch.Tensor) -> int:
        inner = getattr(tensor, "_local_tensor", tensor)
        return inner.numel() * inner.element_size()

    parameters = list(module.parameters())
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return {
        "parameters": sum(map(local, [*parameters, *module.buffers()])),
        "gradients": sum(local(p) for p in parameters if p.requires_grad),
        "optimizer": sum(map(local, states)),
    }
