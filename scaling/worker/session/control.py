"""The control plane: which rank runs when, which has failed, what was agreed. Over the store, not in collectives.

Idle ranks sleep in `store.wait` in slices and check the abort key in between, so when a rank fails, all others end
within a slice.

Measure clock offsets between hosts by ping-pong; the exchange with the shortest round trip counts.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from scaling.records.format import ClockRecord
from scaling.worker.accelerator.clock import is_virtual, now_ns

SLICE = timedelta(seconds=2)
ABORT = "abort"
WAITED = "Wait timeout"
"""How the message of a file store's time-out begins; it has no exception class of its own."""


class Aborted(Exception):  # noqa: N818
    """Another rank failed first. Its error file says how."""


class Control:
    """Agreement between the ranks of one launch."""

    def __init__(
        self,
        store: Any,
        rank: int,
        *,
        patience_s: float = math.inf,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`patience_s`: how long to wait for one key. A launcher ends its launch; an own loop needs a limit.

        `waiting`: a context around each wait (`Accelerator.waiting`).
        """
        self._store = store
        self._rank = rank
        self._patience_s = patience_s
        self._waiting = waiting

    def abort(self, record: dict[str, Any]) -> bool:
        """Tell all ranks that this one failed. Returns whether it was the first."""
        text = json.dumps(record)
        return bool(self._store.compare_set(ABORT, "", text) == text.encode())

    def wait(self, key: str) -> None:
        """Sleep until `key` is set. Aborted when a rank fails meanwhile, TimeoutError after `patience_s`."""
        end = time.monotonic() + self._patience_s
        while True:
            try:
                with self._waiting():
                    self._store.wait([key], SLICE)
            except RuntimeError as error:
                if not isinstance(error, dist.DistStoreError) and not str(error).startswith(WAITED):
                    raise
                self.check()
                if time.monotonic() > end:
                    raise TimeoutError(
                        f"{key}: waited {self._patience_s:.0f} s for the other ranks"
                    ) from None
            else:
                return

    def check(self) -> None:
        """Raise Aborted if a rank has failed."""
        if self._store.check([ABORT]):
            raise Aborted(self._store.get(ABORT).decode())

    def say(self, key: str, value: Any) -> None:
        """Publish a decision under a fresh key."""
        self._store.set(key, json.dumps(value))

    def hear(self, key: str) -> Any:
        """Wait for the decision under `key` and return it."""
        self.wait(key)
        return json.loads(self._store.get(key))

    def agree(self, key: str, value: Any, *, lead: bool | None = None) -> Any:
        """The lead's value, on every rank that asks for `key`. `lead`: whether it is this rank; None: it is rank 0."""
        leads = self._rank == 0 if lead is None else lead
        if leads:
            self.say(key, value)
            return value
        return self.hear(key)

    def meet(self, key: str, count: int) -> None:
        """Sleep until `count` ranks have called this with `key`."""
        if self._store.add(f"{key}/count", 1) == count:
            self.say(key, 1)
        self.wait(key)

    def all_true(self, key: str, count: int, value: bool) -> bool:
        """Whether `value` is true on every one of `count` ranks."""
        if not value:
            self.say(f"{key}/no", 1)
        self.meet(key, count)
        return not self._store.check([f"{key}/no"])

    def judge(self, key: str, answer: Any, rank: int, count: int, rule: Callable[[list[Any]], Any]) -> Any:
        """Each of `count` ranks passes a value. Returns rank 0's `rule` of all of them, on every rank."""
        self.say(f"{key}/{rank}", answer)
        if rank == 0:
            self.say(f"{key}/judged", rule([self.hear(f"{key}/{r}") for r in range(count)]))
        return self.hear(f"{key}/judged")

    def start(self, block: int, *, conductor: bool, skip: bool = False) -> bool:
        """Begin a block together; False where it is skipped. Rank 0 starts it once the block before is finished."""
        if conductor:
            self.say(f"start/{block}", 0 if skip else 1)
        return bool(self.hear(f"start/{block}"))

    def finish(self, block: int, participants: int) -> None:
        """Report that this rank has finished a block."""
        if self._store.add(f"done/{block}", 1) == participants:
            self.say(f"finished/{block}", 1)

    def finished(self, block: int) -> None:
        """Sleep until every participant has finished a block."""
        self.wait(f"finished/{block}")


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
            replies = []
            for _ in range(EXCHANGES):
                sent = now_ns()
                dist.send(cell, dst=first, group=group)
                dist.recv(cell, src=first, group=group)
                received = now_ns()
                replies.append((received - sent, (sent + received) // 2 - int(cell[0])))
            round_trip, offset = min(replies)
            bound = round_trip // 2
    return ClockRecord(at=at, offset_ns=offset, bound_ns=bound, time_ns=now_ns())


def compare_hosts(at: str, rank: int, hosts: Sequence[int], control: Control) -> ClockRecord:
    """Compare each host's clock with that of rank 0. `hosts`: of each rank of the default group, which all call it.

    Ranks of a host share its clock, so its first rank compares for all of them. Virtual clocks are each rank's own.
    """
    if is_virtual():
        return compare_clocks(at, rank, range(len(hosts)), None)
    leads = {host: r for r, host in reversed(list(enumerate(hosts)))}
    lead = leads[hosts[rank]] == rank
    record = dataclasses.asdict(compare_clocks(at, rank, sorted(leads.values()), None)) if lead else None
    return ClockRecord(**control.agree(f"clock/{at}/{hosts[rank]}", record, lead=lead))
