"""Follow an own loop from step to step: assign each step to its block, and record whole blocks between rounds.

The clock's window spans the blocks of a round. It ends where the loop does something else: stamps taken there would
use up the window's events, and hours of it would reduce the window's resolution (clock.EventClock). The next block then
opens another window.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scaling.records.format import AnyStepRow, BlockRecord, CollectiveRow, PlainRow, RecordedBlock
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import resolve_collective
from scaling.worker.measure.recorder import Reading, Usage
from scaling.worker.parallel.strategy import Detail, Take, Taken, Wait, done_in_time, resolved
from scaling.worker.parallel.waits import Waits
from scaling.worker.probe.loop_file import ROUND_STEPS, Planned, round_of, slot_of
from scaling.worker.probe.marks import Marks, behind, named_times, step_row, unseen_forwards
from scaling.worker.probe.phases import Phases

STAMPS_A_MICRO_STEP, STAMPS_A_STEP = 13, 24
"""With the loop's own waits, as many as most loops have."""

Sink = Callable[[RecordedBlock], None]
"""Takes whole blocks. It fills in the world size and the batch, which a track does not know."""


@dataclass(slots=True)
class _Row:
    """A step, its stamps as tokens."""

    begin: int
    end: int
    marks: Marks
    collectives: Sequence[CollectiveRow]
    waits: list[Wait]
    tokens: int
    """How many this rank's step had; NO_TOKENS where the loop told none."""
    squared: int


@dataclass(slots=True)
class _Open:
    """A block that is running or complete, its stamps as tokens."""

    planned: Planned
    usage: Usage
    detail: Detail
    """What it records of collectives."""
    waits: Waits
    micro_steps: int = 1
    rows: list[_Row] = field(default_factory=list)


class Track:
    """Follows the steps of one rank. Slow work happens between the last step of a block and the next block only."""

    def __init__(
        self,
        phases: Phases,
        detail_of: Callable[[], Detail],
        device: Accelerator,
        sink: Sink,
        withheld: Callable[[], str] = str,
    ) -> None:
        """`detail_of`: what a detailed block records. `withheld`: why no collective is to be stamped; asked once."""
        self._why, self._withheld = withheld, ""
        self._phases, self._detail_of, self._device, self._sink = phases, detail_of, device, sink
        self._clock = device.clock
        self.steps = 0
        """Steps that have ended."""
        self.blind = 0
        """Number of steps with phase stamps in which no backward was seen."""
        self._planned: dict[int, Planned] = {}
        """Blocks of the current round, by their first step."""
        self._open: _Open | None = None
        self._recording = contextlib.ExitStack()
        """What the open block records of communication, while it does."""
        self._take: Take = _nothing
        self._whole: list[_Open] = []
        """Whole blocks of the open window, as tokens."""
        self._resolved: list[RecordedBlock] = []
        """Whole blocks of this round whose window has ended, in host time."""
        self._window: contextlib.ExitStack | None = None
        self._since = 0
        """Token of the end of the step before, where the next one begins; 0: it begins where it is entered."""
        self._begin = 0
        self.between: Callable[[int], None] = lambda _slot: None
        """Called between two slots, with the next one."""

    def unseen(self) -> str:
        """Why steps since the last call have no phases; empty where all that should have them do."""
        blind, self.blind = self.blind, 0
        if not blind:
            return ""
        if getattr(self._clock, "captured", False):
            return (
                "a CUDA graph was captured in step(): what it replays cannot be seen, so these steps have no phases "
                "and no buckets; measure without graphs to see them"
            )
        return (
            "no backward through the model's outputs was seen in step(): call the model that was given to Probe; what "
            "a CUDA graph replays cannot be seen either"
        )

    def begin(self, *, paused: bool) -> None:
        """Enter a step. If the loop did something else since the last one (`paused`), its block is given up."""
        if paused:
            self.leave()
        if self._open is not None:
            self._begin = self._since or self._clock.stamp()
        self._phases.begin(marking=self.marking)

    @property
    def marking(self) -> bool:
        """Whether the block that is running takes phase stamps."""
        return self._open is not None and self._open.planned.stamped

    def leave(self) -> None:
        """The loop does something else now: give up the block that is running and end the window."""
        self.drop()
        self._settle()

    def end(self, *, failed: bool = False) -> None:
        """End the step; if it `failed`, its block is given up, and it counts only where other ranks had their part."""
        if failed:
            self.drop()
            self._phases.forwards = 0
            if not (self._phases.reduced or self._phases.stepped):
                return
        self.steps += 1
        over: Reading | None = None
        block = self._open
        if block is None:
            self._since = 0
        else:
            self._since = self._clock.stamp()
            sent, waits = self._take(self._phases.forward_end_ns).collectives or (), block.waits.take()
            told = self._phases.tokens, self._phases.squared
            block.rows.append(_Row(self._begin, self._since, self._phases.marks, sent, waits, *told))
            block.micro_steps = max(block.micro_steps, self._phases.forwards)
            if len(block.rows) == block.planned.steps:
                block.usage.end = over = Reading.take()
                self._stop_recording()
                self._whole.append(block)
        if (self.steps in self._planned) or slot_of(self.steps) != slot_of(self.steps - 1):
            self._next(over)

    def stop(self) -> None:
        """Record whole blocks and drop the rest."""
        self.drop()
        self._write()

    def abandon(self) -> None:
        """Give up the current round without waiting for the device; recorded rounds stay."""
        self.drop()
        self._window = None
        self._whole.clear()
        self._resolved.clear()

    def _next(self, over: Reading | None) -> None:
        """Record a round that has ended, then open the block that begins with the next step.

        `over`: reading taken when the block before it ended just now.
        """
        slot = slot_of(self.steps)
        if slot >= 0 and slot != slot_of(self.steps - 1):
            self._write()
            self.between(slot)
            over = None  # recording took time
            self._planned = {block.first: block for block in round_of(slot)}
        planned = self._planned.get(self.steps)
        if planned is not None:
            if self._window is None:
                self._begin_window()
                over = None
            detail = self._detail_of() if planned.detailed and not self._withheld else Detail()
            waits = Waits(self._device, reduces_behind=self._phases.reduces_behind)
            self._open = _Open(planned, Usage(), detail, waits)
            if planned.stamped:
                self._recording.enter_context(waits.on())
                self._take = self._recording.enter_context(detail.taking())
            self._open.usage.begin = over or Reading.take()
            self._since = self._clock.stamp()

    def _begin_window(self) -> None:
        self._withheld, self._why = self._withheld or self._why(), str
        micro_steps = max(1, self._phases.forwards)
        each = STAMPS_A_STEP + (STAMPS_A_MICRO_STEP + self._detail_of().stamps) * micro_steps
        self._window = contextlib.ExitStack()
        self._window.enter_context(self._clock.window(2 * ROUND_STEPS * each))

    def _stop_recording(self) -> None:
        self._recording.close()
        self._open, self._take = None, _nothing

    def drop(self) -> None:
        """Give up the block that is running, if there is one."""
        self._stop_recording()
        self._since = 0

    def _write(self) -> None:
        """Record the blocks of the round that has ended."""
        self._settle()
        resolved, self._resolved = self._resolved, []
        for block in resolved:
            self._sink(block)

    def _settle(self) -> None:
        """End the window and convert its blocks to host time, while their events are valid."""
        if self._window is not None:
            self._window.close()
            self._window = None
        whole, self._whole = self._whole, []
        self._resolved += filter(None, map(self._resolve, whole))

    def _resolve(self, block: _Open) -> RecordedBlock | None:
        """The block in host time; None where a step that should have phases had no backward."""
        planned, resolve = block.planned, self._clock.resolve
        steps: list[AnyStepRow] = []
        collectives: list[list[CollectiveRow]] = []
        named: dict[str, tuple[int, int]] = {}
        unseen = 0
        for row in block.rows:
            begin, end, *times = resolve([row.begin, row.end, *(token for _, token in row.marks)])
            if not planned.stamped:
                steps.append(PlainRow(begin, end))
                continue
            marks = [(kind, at) for (kind, _), at in zip(row.marks, times, strict=True)]
            waits = resolved(row.waits, resolve)
            step = step_row(begin, marks, end, waits) if all(times) else None
            if step is None:
                self.blind += 1
                return None
            unseen += unseen_forwards(marks)
            steps.append(step._replace(tokens=row.tokens, squared=row.squared))
            waited = [*((wait.begin, wait.end) for wait in waits), *behind(marks)]
            for place, spent in named_times(marks, end, waited).items():
                name = self._phases.names[place]
                ns, wait_ns = map(sum, zip(spent, named.get(name, (0, 0)), strict=True))
                named[name] = (ns, wait_ns)
            if planned.detailed and not self._withheld:
                calls = [resolve_collective(self._clock, call) for call in row.collectives]
                calls = [call if call.done_ns else call._replace(done_ns=step.end_ns) for call in calls]
                calls = [done_in_time(call, step) for call in calls]
                collectives.append(block.detail.all_of(calls, behind(marks), waits))
        record = BlockRecord(
            id=planned.id,
            round=planned.round,
            world_size=0,
            arm=planned.arm,
            detailed=planned.detailed and not self._withheld,
            withheld=self._withheld if planned.detailed else "",
            solo_rank=-1,
            batch=0,
            accumulation=block.micro_steps,
            lead_in=0,
            steps=len(steps),
            phases=named,
            unseen_forwards=unseen,
            **block.usage.fields(),
            **(block.waits.claims.traffic()._asdict() if planned.stamped else {}),
        )
        return RecordedBlock(block=record, steps=steps, collectives=collectives)


def _nothing(_forward_end_ns: int) -> Taken:
    return Taken(None)
