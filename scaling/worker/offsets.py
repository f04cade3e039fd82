"""Clock offsets between hosts by ping-pong: the exchange with the shortest round trip is the least disturbed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from scaling.worker.clock import now_ns

EXCHANGES = 40


def offset_ns(rank: int, world: int, group: Any) -> tuple[int, int]:
    """(offset, bound): this rank's clock minus rank 0's, ns, and half the shortest round trip.

    Rank 0 answers every rank in turn. A reply carries rank 0's stamp; the offset is the middle of
    one's own two stamps minus that, and cannot be wrong by more than half the round trip.
    """
    cell = torch.zeros(1, dtype=torch.int64)
    best = (0, 0)
    for peer in range(1, world):
        if rank == 0:
            for _ in range(EXCHANGES):
                dist.recv(cell, src=peer, group=group)
                cell[0] = now_ns()
                dist.send(cell, dst=peer, group=group)
        elif rank == peer:
            found = []
            for _ in range(EXCHANGES):
                sent = now_ns()
                dist.send(cell, dst=0, group=group)
                dist.recv(cell, src=0, group=group)
                received = now_ns()
                found.append((received - sent, (sent + received) // 2 - int(cell[0])))
            round_trip, offset = min(found)
            best = (offset, round_trip // 2)
    return best
