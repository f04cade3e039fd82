"""What the stamped blocks of a DDP wrapper record whose module waits for ranks inside its forward and backward.

A rank then waits in many places, as a sharded one does: at each collective of the module, behind backward for its
buckets, and at the begin of forward for the broadcast of buffers. Each row says when its rank, or its stream, began to
wait for it and went on.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence

from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES
from scaling.spec.sweep import Message
from scaling.worker.parallel.buckets import done_by
from scaling.worker.parallel.buffers import broadcast_rows, sends_buffers
from scaling.worker.parallel.ddp import bucket_bytes
from scaling.worker.parallel.norms import InlineWaits
from scaling.worker.parallel.strategy import Detail, Edges, Take, Taken, Wait

_BROADCAST, _OTHER = KINDS.index("broadcast"), PHASES.index("other")
STAMPS_A_LAYER = 4
"""Launch and end of a layer's collective in forward, and of that in backward."""


class InlineProbe:
    """The stamps of one arm over several ranks. The module's own collectives are a unit behind the buckets."""

    unsharded_bytes = 0

    def __init__(
        self,
        waits: InlineWaits,
        buckets: Detail | None,
        ddp: DistributedDataParallel,
        group_key: int,
        *,
        layers: int,
    ) -> None:
        """`buckets`: what a detailed block records of them; None in a light one. `layers`: that send something."""
        self._waits, self._buckets, self._key, self._layers = waits, buckets, group_key, layers
        self._ddp = weakref.ref(ddp)  # the loop alone keeps the wrapper
        self._count = len(bucket_bytes(ddp))
        self._buffers_bytes = sum(b.nbytes for b in ddp.module.buffers()) if sends_buffers(ddp) else 0
        self.wire: list[Message] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, the module's own collectives are stamped, and in a detailed block the buckets."""
        buckets = self._buckets.taking() if self._buckets else contextlib.nullcontext()
        with self._waits.on(), buckets as take:
            yield functools.partial(self._take, take)

    def _take(self, take: Take | None, forward_end_ns: int) -> Taken:
        found = self._waits.take()
        waits = [Wait(one.phase, one.launch, one.done) for one in found]
        if take is None:
            return Taken(None, waits, waits_behind=True)
        sent = take(forward_end_ns).collectives or []
        own = [one.waited_row(0, self._key, phase=one.phase, unit=self._count) for one in found]
        rows = _in_order([*own, *_units(sent, self._count)])
        self.wire = self._messages(rows)
        return Taken(rows, waits, waits_behind=True)

    def _messages(self, rows: Sequence[CollectiveRow]) -> list[Message]:
        """What a step sends: buffers at its begin, and behind each reduction of all buckets but the last."""
        found: list[Message] = []
        due, reduced = self._buffers_bytes > 0, 0
        for row in rows:
            if due:
                found.append(Message(_BROADCAST, self._buffers_bytes))
            found.append(Message(row.kind, row.bytes))
            first = row.unit < self._count and row.ready_ns != 0  # of a bucket's messages
            reduced += first
            due = first and self._buffers_bytes > 0 and reduced % self._count == 0
        return found

    def all_of(self, rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:
        """The rows with the broadcasts of buffers, and with where the rank waits for its buckets."""
        known = [
            row._replace(wait_ns=_behind(row, edges), resume_ns=row.done_ns)
            if 0 <= row.unit < self._count
            else row
            for row in done_by(rows, edges)
        ]
        ddp = self._ddp()
        sent = () if ddp is None else broadcast_rows(ddp, edges.broadcasts, 0)
        known += [
            row._replace(
                ready_ns=row.launch_ns, unit=self._count + 1, wait_ns=row.launch_ns, resume_ns=row.done_ns
            )
            for row in sent
        ]
        return _in_order(known)

    def discard(self) -> None:
        """Forget the steps so far."""
        self._waits.take()
        if self._buckets is not None:
            self._buckets.discard()

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """Ready times are those of ddp_solo."""
        return []

    @property
    def stamps(self) -> int:
        """Of the layers and the buckets."""
        return STAMPS_A_LAYER * self._layers + 3 * self._count


def _behind(row: CollectiveRow, edges: Edges) -> int:
    """Where the rank waits for a bucket: at the end of the compute of the backward that launched it."""
    launch = abs(row.launch_ns)  # tokens of events fall, host times rise
    return next((computed for computed, whole in edges.behind if abs(whole) >= launch), 0)


def _units(rows: Sequence[CollectiveRow], count: int) -> list[CollectiveRow]:
    """The rows with their buckets, of which there are `count`, as units; those of others have none.

    Further messages of a hook are of the bucket before them. Rows that name no bucket are in the order of buckets.
    """
    named, place = any(row.unit >= 0 for row in rows), -1
    found: list[CollectiveRow] = []
    for row in rows:
        if row.phase == _OTHER:
            found.append(row)
            continue
        place = row.unit if row.unit >= 0 else place if named else (place + 1) % count
        found.append(row._replace(unit=place))
    return found


def _in_order(rows: Sequence[CollectiveRow]) -> list[CollectiveRow]:
    """By their launch, and behind them what is not the module's: tokens of events fall, host times rise."""
    ordered = sorted(rows, key=lambda row: (row.unit < 0, abs(row.launch_ns)))
    return [row._replace(seq=seq) for seq, row in enumerate(ordered)]
