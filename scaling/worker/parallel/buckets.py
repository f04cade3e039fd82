"""What a detailed block records of DDP: its buckets, found among the collectives that a tap saw."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES, Message
from scaling.worker.parallel.ddp import bucket_bytes, has_own_hook
from scaling.worker.parallel.strategy import Detail, Edges, Take, Taken
from scaling.worker.parallel.tap import Seen, Tap
from scaling.worker.parallel.waits import broadcast_rows

_ALL_REDUCE, _BROADCAST = KINDS.index("all_reduce"), KINDS.index("broadcast")
_OTHER = PHASES.index("other")


_CALLBACK_S = 0.05
"""How long a callback of Gloo's thread may wait for the interpreter once backward has returned."""

Ready = Callable[[int], Sequence[int]]
"""Given the host time at which the last forward ended, when each bucket was ready, ns; empty: not known."""


Sent = frozenset[tuple[int, int]]
"""Kinds of collectives, and elements of their results."""
OF_NORMS = -2
"""Unit of what layers inside send, until the wrapper's buckets are counted."""


class Buckets:
    """The all-reduces of one wrapper's gradients.

    DDP launches its buckets in their order, so the next one is the next all-reduce over its group that has the bucket's
    size and type. A hook may send something else instead; then every all-reduce over the group counts. The named hooks
    say whose bucket they send (parallel.ddp).
    """

    def __init__(
        self, ddp: DistributedDataParallel, key: int | None = None, norms: Sent = frozenset()
    ) -> None:
        """`key`: of its group in the records; None: its size. `norms`: what layers inside send (waits.Norms.sent)."""
        self._norms = norms
        self._ddp = weakref.ref(ddp)  # the loop alone keeps the wrapper
        self._name = ddp.process_group.group_name
        self._key = dist.get_world_size(ddp.process_group) if key is None else key
        self._hooked = has_own_hook(ddp)
        self._sizes: list[int] = []
        """Bytes of the buckets, once a step was recorded."""
        self._types = {parameter.dtype for parameter in ddp.parameters()}

    def rows(self, seen: Sequence[Seen], ready: Sequence[int] = ()) -> list[CollectiveRow]:
        """The step's buckets, with tokens as stamps, and then the collectives that are not DDP's.

        A bucket counts as ready when it is launched, or by `ready`, host times that may be a little late. An all-reduce
        of a hook that is not the first of its bucket waited for no gradient; its ready time is 0. DDP's broadcasts of
        buffers are left out: they are stamped where they are waited for.
        """
        if self._key == 1:
            return []
        ours = [call for call in seen if call.group.group_name == self._name]
        inside = [call for call in ours if call.blocking and _kind_and_elements(call) in self._norms]
        ids = set(map(id, inside))
        reductions = [c for c in ours if c.kind == _ALL_REDUCE and c.bytes and id(c) not in ids]
        if not self._hooked:
            reductions = self._in_order(reductions)
        _wait_for_callbacks(reductions)
        ids |= {id(call) for call in (*reductions, *(call for call in ours if call.kind == _BROADCAST))}
        others = [call for call in seen if id(call) not in ids and call.bytes]
        buckets = [call.row(seq, self._key, unit=call.unit) for seq, call in enumerate(reductions)]
        norms = [call.row(0, self._key, phase=call.phase, unit=OF_NORMS) for call in inside]
        norms = [row._replace(wait_ns=row.launch_ns, resume_ns=row.done_ns) for row in norms]
        return [*_by_bucket(buckets, ready), *self._others(others, len(reductions)), *norms]

    def _others(self, others: Sequence[Seen], first: int) -> list[CollectiveRow]:
        rows = (call.row(seq, self._key, phase=_OTHER) for seq, call in enumerate(others, first))
        return [
            row._replace(bytes=max(1, row.bytes), ready_ns=0, done_ns=row.done_ns or row.launch_ns)
            for row in rows
        ]

    def _in_order(self, seen: Sequence[Seen]) -> list[Seen]:
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


class BucketDetail(Detail):
    """The buckets of a detailed block. A tap is open meanwhile; the wrapper is the one that trains."""

    def __init__(
        self,
        ddp: DistributedDataParallel,
        tap: Tap,
        ready: Ready | None = None,
        key: int | None = None,
        norms: Sent = frozenset(),
    ) -> None:
        """`ready`: None where a bucket counts as ready when it is launched. `key`, `norms`: as `Buckets` takes them."""
        self._ddp, self._tap, self._buckets, self._ready = (
            weakref.ref(ddp),
            tap,
            Buckets(ddp, key, norms),
            ready,
        )
        super().__init__()
        self._count = max(1, len(bucket_bytes(ddp)))

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """The tap is open inside."""
        with self._tap.on():
            yield self._take

    def _take(self, forward_end_ns: int) -> Taken:
        ready = self._ready(forward_end_ns) if self._ready else ()
        rows = self._buckets.rows(self._tap.take(), ready)
        self.wire = [Message(row.kind, row.bytes) for row in rows if row.phase != _OTHER]
        return Taken(rows, None)

    def all_of(self, rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:
        """The rows with those of the step's broadcasts of buffers."""
        ddp = self._ddp()
        rows = done_by(rows, edges)
        return [*rows, *(() if ddp is None else broadcast_rows(ddp, edges.broadcasts, len(rows)))]

    def discard(self) -> None:
        """Forget what was seen."""
        self._tap.take()

    @property
    def stamps(self) -> int:  # type: ignore[override]
        """Launch, start and end of each bucket."""
        return 3 * max(self._count, len(self.wire))


def _kind_and_elements(call: Seen) -> tuple[int, int]:
    return call.kind, call.bytes // call.dtype.itemsize


def done_by(rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:
    """The rows, done with backward at the latest: torch wakes who waits for a collective before it calls back."""
    latest = max((whole for _, whole in edges.behind), default=0)
    return [
        row._replace(done_ns=latest) if row.phase != _OTHER and 0 < latest < row.done_ns else row
        for row in rows
    ]


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


def _wait_for_callbacks(seen: Sequence[Seen]) -> None:
    """Backward has returned, so these are done; on the host a thread may still be about to say so."""
    until = time.monotonic() + _CALLBACK_S
    while any(call.called and not call.done for call in seen) and time.monotonic() < until:
        time.sleep(0)
