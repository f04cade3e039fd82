"""Clock offsets of an own loop: between two steps, now and then, and only where ranks have different kernels.

Two kernels' clocks drift apart by some 20 us a second, and a training runs for days, so two
measurements at its ends would not do; and at its end nobody can be asked to measure, since a rank may be
gone. So the first come close together: whenever a loop ends, its clocks were compared over about half of
it or until EVERY_S ago. The first rank of each kernel measures for all of its kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from scaling.worker.clock import now_ns
from scaling.worker.offsets import offset_ns
from scaling.worker.own.agreement import Agreement

FIRST_S, EVERY_S = 1.0, 120.0
"""From the first comparison to the second; each time twice as long, up to EVERY_S."""
FIRST_SLOT = 1
"""Not before the first round: until the ranks have waited for one another, a host may be far ahead of another's."""
TIMEOUT = timedelta(seconds=30)


class Clocks:
    """Notes this rank's offset to rank 0 before the slots that rank 0 names."""

    def __init__(self, agreement: Agreement) -> None:
        """A collective where there is more than one kernel."""
        self._rank = agreement.rank
        self._own = agreement.kernels[agreement.rank]
        first = [agreement.kernels.index(k) for k in sorted(set(agreement.kernels))]
        self._leads = agreement.rank in first
        self._ranks = [agreement.members[r] for r in first]
        self._me = agreement.members[agreement.rank]
        self._store = agreement.store
        self._next = FIRST_SLOT
        self._wait_s = FIRST_S
        self._last_ns, self._last_slot = now_ns(), 0
        self._group: Any = None
        if len(first) > 1:
            whole = len(agreement.members) == dist.get_world_size()
            self._group = dist.new_group(
                agreement.members, backend="gloo", timeout=TIMEOUT, use_local_synchronization=not whole
            )

    def look(self, slot: int, note: Callable[..., None]) -> None:
        """Measure when it is time to; `note` writes the line. Raises when a peer does not answer."""
        if self._group is None or slot < self._next:
            return
        offset, bound = offset_ns(self._me, self._ranks, self._group) if self._leads else (0, 0)
        at_ns = now_ns()  # before anything is waited for: the offset is this instant's
        if self._rank == 0:
            self._store.set(f"clock/{slot}/next", str(self._after(slot)))
        key = f"clock/{slot}/{self._own}"
        if self._leads:
            self._store.set(key, json.dumps([offset, bound, at_ns]))
        else:
            self._store.wait([key], TIMEOUT)
            offset, bound, at_ns = json.loads(self._store.get(key))  # the same kernel's clock
        self._store.wait([f"clock/{slot}/next"], TIMEOUT)
        self._next = int(self._store.get(f"clock/{slot}/next"))
        note("clock", at=f"slot {slot}", offset_ns=offset, bound_ns=bound, time_ns=at_ns)

    def _after(self, slot: int) -> int:
        """The slot that will begin when it is time again, at the pace since the last time; rank 0 alone asks."""
        now = now_ns()
        slots = max(1, slot - self._last_slot)
        each_s = (now - self._last_ns) / 1e9 / slots
        self._last_ns, self._last_slot = now, slot
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, EVERY_S)
        return slot + max(1, round(wait_s / each_s))
