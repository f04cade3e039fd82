"""What the stamped blocks of a sharded module record: where its ranks wait, and each collective with its unit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from scaling.records.format import CollectiveRow
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES
from scaling.spec.sweep import Message
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.parallel.fsdp_waits import Mark, Watch
from scaling.worker.parallel.strategy import Edges, Take, Taken
from scaling.worker.parallel.tap import Seen, Tap
from scaling.worker.parallel.waits import FunctionalWaits

_ALL_GATHER, _REDUCE_SCATTER = KINDS.index("all_gather"), KINDS.index("reduce_scatter")
_OTHER = PHASES.index("other")
STAMPS_A_UNIT = 17
"""Three collectives with launch, start and end, and begin and end of as many waits, in a forward and a backward."""


class UnitProbe:
    """The stamps of one arm. Over one rank nothing is sent: its rows have a unit's turns, without launch and end."""

    def __init__(
        self,
        watch: Watch,
        keys: Mapping[str, int],
        sizes: Sequence[int],
        device: Accelerator,
        *,
        detailed: bool,
        others: Mapping[tuple[int, ...], int] | None = None,
        divided_layers: int = 0,
    ) -> None:
        """`keys`: of the communicators in the records, by their groups' names; none over one rank.

        `others`: of those that torch made by itself, by their ranks. `divided_layers`: layers that are divided over
        ranks; what these send is a unit of its own behind the others.
        """
        self._others = others or {}
        self._divided_layers = divided_layers
        self._layers = FunctionalWaits(device.clock.stamp) if divided_layers else None
        self._watch, self._keys, self._sizes, self._detailed = watch, dict(keys), sizes, detailed
        self._tap = Tap(device.clock)
        self.wire: list[Message] = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[Take]:
        """Inside, waits are stamped; in a detailed block over several ranks the tap is open."""
        sends = self._detailed and bool(self._keys)
        with (
            self._tap.on() if sends else contextlib.nullcontext(),
            self._watch.on(self._tap if sends else None),
            self._layers.on(self._tap if sends else None) if self._layers else contextlib.nullcontext(),
        ):
            yield self._take

    def _take(self, _forward_end_ns: int) -> Taken:
        waits, marks = self._watch.take()
        if self._layers:
            waits += self._layers.take()
        if not self._detailed:
            return Taken(None, waits)
        if not self._keys:
            return Taken([self._turn(seq, mark) for seq, mark in enumerate(marks)], waits)
        rows = [self._row(seq, seen) for seq, seen in enumerate(self._tap.take())]
        self.wire = [Message(row.kind, row.bytes, group=row.group) for row in rows if row.unit >= 0]
        return Taken(rows, waits)

    def _row(self, seq: int, seen: Seen) -> CollectiveRow:
        of_layers = self._of_layers(seen)
        phase = seen.phase if of_layers or seen.unit >= 0 else _OTHER
        unit = len(self._sizes) if of_layers else seen.unit
        return seen.waited_row(seq, self._key(seen.group), phase=phase, unit=unit)

    def _of_layers(self, seen: Seen) -> bool:
        """Whether divided layers sent it: it is waited for, and is no unit's. A device's tokens are below 0."""
        return self._layers is not None and seen.unit < 0 and seen.wait != 0

    def _key(self, group: Any) -> int:
        """0: it is none of the strategy's communicators."""
        name = group.group_name
        if name not in self._keys:
            self._keys[name] = self._others.get(tuple(dist.get_process_group_ranks(group)), 0)
        return self._keys[name]

    def _turn(self, seq: int, mark: Mark) -> CollectiveRow:
        return CollectiveRow(
            seq=seq,
            kind=_REDUCE_SCATTER if mark.reduced else _ALL_GATHER,
            group=1,
            bytes=self._sizes[mark.unit],
            ready_ns=mark.launch,
            launch_ns=0,
            done_ns=0,
            phase=mark.phase,
            unit=mark.unit,
            wait_ns=mark.wait,
            resume_ns=mark.wait,
        )

    def all_of(self, rows: Sequence[CollectiveRow], edges: Edges) -> list[CollectiveRow]:  # noqa: ARG002
        """fully_shard sends no buffers, and its waits are stamped."""
        return list(rows)

    def discard(self) -> None:
        """Forget the steps so far."""
        self._watch.take()
        self._tap.take()
        if self._layers:
            self._layers.take()

    def parameters(self, begin_ns: Sequence[int]) -> list[tuple[int, int]]:  # noqa: ARG002
        """Gradients are reduced by unit."""
        return []

    @property
    def stamps(self) -> int:
        """For every unit and every divided layer, a step's turns."""
        return STAMPS_A_UNIT * (len(self._sizes) + self._divided_layers)

    @property
    def unsharded_bytes(self) -> int:
        """Most that was gathered at once in the first step of a block."""
        return self._watch.unsharded_bytes
