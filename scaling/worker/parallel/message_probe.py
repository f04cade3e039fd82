"""What the stamped blocks of a pipeline record: its messages, and where the rank waits for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from scaling.records.format import CollectiveRow
from scaling.spec.sweep import Message
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.pipeline import Posted, Schedule
from scaling.worker.parallel.strategy import Edges, Take, Taken

STAMPS_A_STAGE = 14
"""Launch, begin and end of the wait of up to four messages, and two begins of phases: for each microbatch."""


class MessageProbe:
    """The stamps of one block."""

    unsharded_bytes = 0

    def __init__(
        self, schedule: Schedule, keys: Mapping[int, int], device: Accelerator, *, detailed: bool
    ) -> None:
        """`keys`: of a rank's pair with each of its peers, by the peer."""
        self._schedule, self._keys, self._device, self._detailed = schedule, keys, device, detailed
        self.wire: list[Message] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, messages and waits are stamped."""
        with self._schedule.watching(self._device.clock.stamp):
            yield self._take

    def _take(self, _forward_end_ns: int) -> Taken:
        posted, waits = self._schedule.take()
        rows = [self._row(seq, one) for seq, one in enumerate(posted)]
        return Taken(rows if self._detailed else None, waits)

    def _row(self, seq: int, one: Posted) -> CollectiveRow:
        return CollectiveRow(
            seq=seq,
            kind=one.kind,
            group=self._keys[one.peer],
            bytes=one.bytes,
            ready_ns=one.launch,
            launch_ns=one.launch,
            done_ns=one.resume,
            enqueue_ns=one.enqueue_ns,
            phase=one.phase,
            wait_ns=one.wait,
            resume_ns=one.resume,
        )

    def all_of(self, rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:  # noqa: ARG002
        """Nothing else is sent."""
        return list(rows)

    def discard(self) -> None:
        """Forget the steps so far."""
        self._schedule.take()

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """No gradients are reduced."""
        return []

    @property
    def stamps(self) -> int:
        """Of a microbatch."""
        return STAMPS_A_STAGE * len(self._schedule.stages)
