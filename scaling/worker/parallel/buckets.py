"""Find DDP's buckets among the collectives that a tap saw."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaling.records.format import CollectiveRow
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES
from scaling.worker.parallel.ddp import bucket_bytes, has_own_hook
from scaling.worker.parallel.tap import Seen

_ALL_REDUCE, _BROADCAST = KINDS.index("all_reduce"), KINDS.index("broadcast")
_OTHER = PHASES.index("other")


class Buckets:
    """The all-reduces of one wrapper's gradients.

    DDP launches its buckets in their order, so the next one is the next all-reduce over its group that has the bucket's
    size and type. A hook of the user may send something else instead; then every all-reduce over the group counts.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self.ddp = ddp
        self._name = ddp.process_group.group_name
        self._key = dist.get_world_size(ddp.process_group)
        self._sizes: list[int] = []
        """Bytes of the buckets, once a step was recorded: DDP has settled them by then."""
        self._types = {parameter.dtype for parameter in ddp.parameters()}

    def rows(self, seen: Sequence[Seen]) -> list[CollectiveRow]:
        """The step's buckets, with tokens as stamps, and then the collectives that are not DDP's.

        A bucket counts as ready when it is launched. Its `done` is 0 where the callback has not run yet, since
        callbacks come from another thread that may still wait for the interpreter: it was done when the backward was.
        DDP's broadcasts of buffers are left out: they are stamped where they are waited for.
        """
        if self._key == 1:
            return []
        ours = [one for one in seen if one.group.group_name == self._name]
        own = [one for one in ours if one.kind == _ALL_REDUCE]
        if not has_own_hook(self.ddp):
            own = self._in_order(own)
        known = {id(one) for one in (*own, *(one for one in ours if one.kind == _BROADCAST))}
        others = [one for one in seen if id(one) not in known]
        buckets = (one.row(seq, self._key) for seq, one in enumerate(own))
        return [*buckets, *self._others(others, len(own))]

    def _others(self, others: Sequence[Seen], first: int) -> list[CollectiveRow]:
        rows = (one.row(seq, self._key, phase=_OTHER) for seq, one in enumerate(others, first))
        return [
            row._replace(bytes=max(1, row.bytes), ready_ns=0, done_ns=row.done_ns or row.launch_ns)
            for row in rows
        ]

    def _in_order(self, seen: Sequence[Seen]) -> list[Seen]:
        self._sizes = self._sizes or bucket_bytes(self.ddp)
        found: list[Seen] = []
        for one in seen:
            if one.bytes == self._sizes[len(found) % len(self._sizes)] and one.dtype in self._types:
                found.append(one)
        return found
