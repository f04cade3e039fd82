"""What a detailed block records of DDP: its buckets, found among the collectives that a tap saw.

A rank waits for them behind backward. Where layers of the module wait for other ranks too (SyncBatchNorm), it waits in
many places, as a sharded one does. Each row then says when its rank, or its stream, began to wait for it and went on.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES, Message
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.parallel.ddp import Norms, bucket_bytes, has_own_hook, sends_buffers
from scaling.worker.parallel.strategy import BUFFERS, FORWARD, Behind, Detail, Wait
from scaling.worker.parallel.tap import Seen, Tap
from scaling.worker.parallel.waits import Waits

_ALL_REDUCE, _BROADCAST = KINDS.index("all_reduce"), KINDS.index("broadcast")
_OTHER = PHASES.index("other")

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
    say whose bucket they send (parallel.ddp).
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
        reductions = [c for c in ours if c.kind == _ALL_REDUCE and c.bytes and id(c) not in ids]
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
