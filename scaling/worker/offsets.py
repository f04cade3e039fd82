"""Clock offsets between hosts by ping-pong: the exchange with the shortest round trip is the least disturbed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaling.worker.clock import now_ns

EXCHANGES = 40


def offset_ns(rank: int, ranks: Sequence[int], group: Any) -> tuple[int, int]:
    """(offset, bound): this rank's clock minus the first's of `ranks`, ns, and half the shortest round trip.

    The first of `ranks` answers the others in turn. A reply carries its stamp; the offset is the
    middle of one's own two stamps minus that, and cannot be wrong by more than half the round trip.
    Ranks are those of the default group.
    """
    cell = torch.zeros(1, dtype=torch.int64)
    best = (0, 0)
    first, *others = ranks
    for peer in others:
        if rank == first:
            for _ in range(EXCHANGES):
                dist.recv(cell, src=peer, group=group)
                cell[0] = now_ns()
                dist.send(cell, dst=peer, group=group)
        elif rank == peer:
            found = []
            for _ in range(EXCHANGES):
                sent = now_ns()
                dist.send(cell, dst=first, group=group)
                dist.recv(cell, src=first, group=group)
                received = now_ns()
                found.append((received - sent, (sent + received) // 2 - int(cell[0])))
            round_trip, offset = min(found)
            best = (offset, round_trip // 2)
    return best
