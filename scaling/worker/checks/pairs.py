"""Measure the bandwidth between pairs of ranks, one pair at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from scaling.records.checkup import Pair
from scaling.spec.topology import BACKEND_OF, CPU
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import now_ns

ALL_PAIRS_RANKS = 16
"""Up to this many ranks, every pair is measured; above, each rank with the next and with the one half-way round."""
BYTES_MIN, BYTES_MAX = 2**20, 2**26
LONG_NS = 150_000_000
"""A message of this duration is long enough: a traffic shaper's burst is small compared with it."""
REPEATS = 3


def pairs_of(world: int) -> tuple[tuple[int, int], ...]:
    """(first, second) of every pair to measure, in order; the same on every rank."""
    if world <= ALL_PAIRS_RANKS:
        return tuple((a, b) for a in range(world) for b in range(a + 1, world))
    near = {(r, (r + 1) % world) for r in range(world)} | {
        (r, (r + world // 2) % world) for r in range(world)
    }
    return tuple(sorted({(min(p), max(p)) for p in near}))


def measure(
    rank: int,
    world: int,
    *,
    device: Accelerator,
    group: Any,
    backend: str,
    turn: Callable[[int], None],
    local_rank: Callable[[int], int | None],
) -> tuple[Pair, ...]:
    """What this rank exchanged with its peers. `turn(i)` waits until pair i may begin.

    A message goes there and back; half the round trip is its one-way time. Gloo moves host
    memory, other back ends the device's. `local_rank` is a peer's place on this host, None on another.
    """
    found: list[Pair] = []
    for index, pair in enumerate(pairs_of(world)):
        turn(index)
        if rank in pair:
            peer = pair[1] if rank == pair[0] else pair[0]
            where = torch.device(CPU) if backend == BACKEND_OF[CPU] else device.torch_device
            size, took = _pair(rank == pair[0], peer, device, group, where)
            place = local_rank(peer)
            access = None if place is None else device.peer_access(place)
            found.append(Pair(peer=peer, bytes=size, duration_ns=took, peer_access=access))
    turn(len(pairs_of(world)))
    return tuple(found)


def _pair(first: bool, peer: int, device: Accelerator, group: Any, where: torch.device) -> tuple[int, int]:
    """(bytes, one-way ns) of the largest message. The first rank decides on the next size and tells its peer."""
    size = BYTES_MIN
    _round_trip(first, peer, torch.zeros(1, device=where), device, group)  # connects
    while True:
        buffer = torch.zeros(size, dtype=torch.uint8, device=where)
        took = min(_round_trip(first, peer, buffer, device, group) for _ in range(REPEATS)) // 2
        go_on = torch.tensor([int(took < LONG_NS and size < BYTES_MAX)], device=where)
        if first:
            dist.send(go_on, peer, group=group)
        else:
            dist.recv(go_on, peer, group=group)
        if not int(go_on.item()):
            return size, took
        size *= 4


def _round_trip(first: bool, peer: int, buffer: torch.Tensor, device: Accelerator, group: Any) -> int:
    device.synchronize()
    begin = now_ns()
    if first:
        dist.send(buffer, peer, group=group)
        dist.recv(buffer, peer, group=group)
    else:
        dist.recv(buffer, peer, group=group)
        dist.send(buffer, peer, group=group)
    device.synchronize()
    return now_ns() - begin
