"""Compare the clocks of an own loop between two steps, from time to time, where ranks run on different kernels.

Two kernels' clocks drift apart by some 20 us per second and a training runs for days, so comparisons at its two ends
are not enough. There may be none at the end, since a rank may be gone. The intervals therefore grow: whenever a loop
ends, its clocks were compared over about half of it, or until EVERY_S ago. The first rank of each kernel measures for
all ranks of its kernel.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from scaling.records.format import ClockRecord
from scaling.worker.accelerator.clock import now_ns
from scaling.worker.probe.agreement import Agreement
from scaling.worker.session.offsets import compare_clocks

FIRST_S, EVERY_S = 1.0, 120.0
"""Time between the first two comparisons; it doubles each time, up to EVERY_S."""
FIRST_SLOT = 1
"""The first comparison waits for this slot: before the ranks have waited for one another, one may be far ahead."""
TIMEOUT = timedelta(seconds=30)


class Clocks:
    """Records this rank's offset to rank 0 before the slots that rank 0 chooses."""

    def __init__(self, agreement: Agreement) -> None:
        """Makes a group, as a collective, where there is more than one kernel."""
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

    def look(self, slot: int, note: Callable[[ClockRecord], None]) -> None:
        """Compare the clocks if it is time; `note` takes the record. Raises when a peer does not answer."""
        if self._group is None or slot < self._next:
            return
        record = None
        if self._leads:
            record = compare_clocks(f"slot {slot}", self._me, self._ranks, self._group)
        if self._rank == 0:
            self._store.set(f"clock/{slot}/next", str(self._after(slot)))
        key = f"clock/{slot}/{self._own}"
        if record is not None:
            self._store.set(key, json.dumps(dataclasses.asdict(record)))
        else:
            self._store.wait([key], TIMEOUT)
            record = ClockRecord(**json.loads(self._store.get(key)))  # the same kernel has the same clock
        self._store.wait([f"clock/{slot}/next"], TIMEOUT)
        self._next = int(self._store.get(f"clock/{slot}/next"))
        note(record)

    def _after(self, slot: int) -> int:
        """The slot for the next comparison, at the rate of slots since the last one. Only rank 0 calls it."""
        now = now_ns()
        slots = max(1, slot - self._last_slot)
        each_s = (now - self._last_ns) / 1e9 / slots
        self._last_ns, self._last_slot = now, slot
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, EVERY_S)
        return slot + max(1, round(wait_s / each_s))
