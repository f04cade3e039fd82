"""Measure clock offsets between hosts by ping-pong; the exchange with the shortest round trip counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaling.records.format import ClockRecord
from scaling.worker.accelerator.clock import is_virtual, now_ns
from scaling.worker.session.control import Control

EXCHANGES = 40


def compare_clocks(at: str, rank: int, ranks: Sequence[int], group: Any) -> ClockRecord:
    """Compare this rank's clock with that of the first of `ranks`. All of them call it; `at` names the occasion.

    The first of `ranks` answers the others in turn. A reply carries its stamp; the offset is the middle of this rank's
    two stamps minus that, so its error is at most half the round trip. Ranks are those of the default group.
    """
    cell = torch.zeros(1, dtype=torch.int64)
    offset, bound = 0, 0
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
            bound = round_trip // 2
    return ClockRecord(at=at, offset_ns=offset, bound_ns=bound, time_ns=now_ns())


def compare_hosts(at: str, rank: int, hosts: Sequence[int], control: Control) -> ClockRecord:
    """Compare each host's clock with that of rank 0. `hosts`: of each rank of the default group, which all call it.

    Ranks of a host share its clock, so its first rank compares for all of them. Virtual clocks are each rank's own.
    """
    first = {host: r for r, host in reversed(list(enumerate(hosts)))}
    leads = range(len(hosts)) if is_virtual() else sorted(first.values())
    record = compare_clocks(at, rank, leads, None) if rank in leads else None
    if is_virtual() and record is not None:
        return record
    known = control.agree(
        f"clock/{at}/{hosts[rank]}", record and dataclasses.asdict(record), lead=record is not None
    )
    return ClockRecord(**known)
