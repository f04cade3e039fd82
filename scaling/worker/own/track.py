"""From one step to the next: which block a step belongs to, what it leaves, and writing that down between rounds.

The clock's window spans the blocks of a round. It ends where the loop does something else: what that stamps itself
would take the window's events, and hours of it would cost the window's resolution (clock.CudaClock). The next block
opens another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from scaling.records import STEP_FIELDS
from scaling.worker.clock import resolve_collective
from scaling.worker.devices import Device
from scaling.worker.own.phases import SYNC_END, Marks, Phases, step_fields
from scaling.worker.own.schedule import ROUND_STEPS, Planned, round_of, slot_of
from scaling.worker.own.tap import Tap
from scaling.worker.recorder import Reading, Usage

SYNC_END_FIELD = STEP_FIELDS.index("sync_end_ns")
STAMPS_A_MICRO_STEP, STAMPS_A_STEP = 4, 8


class Sink(Protocol):
    """Where whole blocks go."""

    def __call__(
        self,
        fields: dict[str, Any],
        steps: Sequence[Sequence[int]],
        collectives: Sequence[Sequence[Sequence[int]]],
        usage: Usage,
    ) -> None:
        """As `Recorder.block`, but for what the sink itself knows."""


@dataclass(slots=True)
class _Row:
    """A step in tokens."""

    begin: int
    end: int
    marks: Marks
    collectives: list[list[int]]


@dataclass(slots=True)
class _Open:
    """A block under way, or whole."""

    planned: Planned
    usage: Usage
    micro_steps: int = 1
    rows: list[_Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Told:
    """A block in host time, as a sink takes it."""

    fields: dict[str, Any]
    steps: list[list[int]]
    collectives: list[list[list[int]]]
    usage: Usage


class Track:
    """The steps of one rank. All that takes time happens between the last step of a block and the next block."""

    def __init__(self, phases: Phases, tap: Tap, device: Device, sink: Sink) -> None:
        self._phases, self._tap, self._device, self._sink = phases, tap, device, sink
        self._clock = device.clock
        self.steps = 0
        """Steps that are over."""
        self.blind = 0
        """Steps with phase stamps in which no backward was seen."""
        self._planned: dict[int, Planned] = {}
        """Blocks of the round under way by their first step."""
        self._open: _Open | None = None
        self._whole: list[_Open] = []
        """Blocks of the window under way, in tokens."""
        self._told: list[_Told] = []
        """Those of windows that ended since a round was written down."""
        self._window: contextlib.ExitStack | None = None
        self._since = 0
        """Token of where the next step begins: at the end of the one before. 0: where it is entered."""
        self._begin = 0
        self.between: Callable[[int], None] = lambda _slot: None
        """Called with the slot that comes next, when a slot is over."""

    def begin(self, *, paused: bool) -> None:
        """A step is entered. Where the loop did something else meanwhile (`paused`), its block is given up."""
        if paused:
            self.leave()
        if self._open is not None:
            self._begin = self._since or self._clock.stamp()
        self._phases.begin(marking=self._open is not None and self._open.planned.stamped)

    def leave(self) -> None:
        """Between two steps the loop does something else: the block under way is given up, the window ends."""
        self._give_up()
        self._settle()

    def end(self, *, failed: bool = False) -> None:
        """The step is over; one that `failed` takes its block along."""
        self.steps += 1
        if failed:
            self._give_up()
            self._phases.forwards = 0
        block = self._open
        if block is None:
            self._since = 0
        else:
            self._since = self._clock.stamp()
            marks = self._phases.marks
            sync_end = next((token for kind, token in reversed(marks) if kind == SYNC_END), 0)
            collectives = self._tap.take(sync_end) if block.planned.detailed else []
            block.rows.append(_Row(self._begin, self._since, marks, collectives))
            block.micro_steps = max(block.micro_steps, self._phases.forwards)
        over = self._close() if block is not None and len(block.rows) == block.planned.steps else None
        if (self.steps in self._planned) or slot_of(self.steps) != slot_of(self.steps - 1):
            self._next(over)

    def stop(self) -> None:
        """Write what is whole; the rest is dropped."""
        self._give_up()
        self._write()

    def abandon(self) -> None:
        """Give up what is under way without waiting for the device; rounds that were written down stay."""
        self._give_up()
        self._window = None
        self._whole.clear()
        self._told.clear()

    def drop(self) -> None:
        """Leave nothing open."""
        self._give_up()

    def _next(self, over: Reading | None) -> None:
        """Open the block that begins with the next step, after writing down a round that is over.

        `over`: taken when the block before ended, just now.
        """
        slot = slot_of(self.steps)
        if slot >= 0 and slot != slot_of(self.steps - 1):
            self._write()
            self.between(slot)
            over = None  # all that took time
            self._planned = {block.first: block for block in round_of(slot)}
        planned = self._planned.get(self.steps)
        if planned is not None:
            if self._window is None:
                self._begin_window()
                over = None
            self._open = _Open(planned, Usage())
            if planned.detailed:
                self._tap.open()
            self._open.usage.begin = over or Reading.take()
            self._since = self._clock.stamp()

    def _begin_window(self) -> None:
        micro_steps = max(1, self._phases.forwards)
        each = STAMPS_A_STEP + STAMPS_A_MICRO_STEP * micro_steps
        self._window = contextlib.ExitStack()
        self._window.enter_context(self._clock.window(2 * ROUND_STEPS * each))

    def _close(self) -> Reading:
        assert self._open is not None
        self._open.usage.end = over = Reading.take()
        self._tap.close()
        self._whole.append(self._open)
        self._open = None
        return over

    def _give_up(self) -> None:
        self._tap.close()
        self._open = None
        self._since = 0

    def _write(self) -> None:
        """The blocks of the round that is over."""
        self._settle()
        told, self._told = self._told, []
        for block in told:
            self._sink(block.fields, block.steps, block.collectives, block.usage)

    def _settle(self) -> None:
        """End the window and tell its blocks in host time, while their events are known."""
        if self._window is not None:
            self._window.close()
            self._window = None
        whole, self._whole = self._whole, []
        self._told += filter(None, map(self._tell, whole))

    def _tell(self, block: _Open) -> _Told | None:
        """None where a step that was to have phase stamps had no backward."""
        planned, resolve = block.planned, self._clock.resolve
        steps: list[list[int]] = []
        collectives: list[list[list[int]]] = []
        for row in block.rows:
            begin, end, *times = resolve([row.begin, row.end, *(token for _, token in row.marks)])
            fields: list[int] | None = [begin, end]
            if planned.stamped:
                marks = [(kind, at) for (kind, _), at in zip(row.marks, times, strict=True)]
                fields = step_fields(begin, marks, end)
            if fields is None:
                self.blind += 1
                return None
            steps.append(fields)
            if planned.detailed:
                sync_end = fields[SYNC_END_FIELD]
                done = [resolve_collective(self._clock, collective) for collective in row.collectives]
                collectives.append([[*rest, min(at, sync_end)] for *rest, at in done])
        return _Told(
            {
                "id": planned.id,
                "round": planned.round,
                "arm": planned.arm,
                "detailed": planned.detailed,
                "solo_rank": -1,
                "accumulation": block.micro_steps,
                "lead_in": 0,
                "steps": len(steps),
            },
            steps,
            collectives,
            block.usage,
        )
