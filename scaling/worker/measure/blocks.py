"""Run one block on one rank, convert its stamps to host time, and record it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from scaling.records.format import (
    AnyStepRow,
    BlockRecord,
    CollectiveRow,
    MemoryRecord,
    PlainRow,
    RecordedBlock,
    StepRow,
)
from scaling.settings import schedule as sweeping
from scaling.settings.run import COLLECTIVES
from scaling.settings.schedule import (
    BARE_ONE,
    FABRIC,
    PAIRS,
    PLAIN,
    PROBE,
    REPLAY,
    REPLAYED,
    STEP_ARMS,
    Block,
    Message,
)
from scaling.worker.accelerator.accelerator import Accelerator
from scaling.worker.accelerator.clock import resolve_collective
from scaling.worker.measure.arms import Arms, Opened
from scaling.worker.measure.exchange import Exchange, stamps_of
from scaling.worker.measure.recorder import Recorder, Usage, resident_bytes
from scaling.worker.measure.step import behind, step_row
from scaling.worker.parallel.groups import Group
from scaling.worker.parallel.strategy import Detail, Taken, done_in_time, resolved

LEAD_IN_BYTES = 2**16
"""A message of this size runs unrecorded before a sweep or pairs: the first one after a pause is slow."""


class BlockRunner:
    """Runs the blocks of one launch."""

    def __init__(
        self,
        *,
        device: Accelerator,
        groups: Mapping[int, Group],
        exchange: Exchange,
        recorder: Recorder,
        collectives: Sequence[str],
        backend: str = "gloo",
        several: bool = False,
    ) -> None:
        """`collectives`: names of the collectives that the size sweep runs, over this back end.

        `several`: strategies run side by side, and a block says whose it is.
        """
        self._device, self._groups, self._exchange, self._recorder = device, groups, exchange, recorder
        self._kinds = [COLLECTIVES.index(name) for name in collectives]
        self._backend, self._several = backend, several

    def run(self, block: Block, arms: Arms, sweep: Sequence[int], *, steps: int, lead_in: int) -> float:
        """Run and record one block; `sweep`: sizes of the fabric arm, bytes. Returns the mean step, ns.

        `lead_in`: steps that are dropped, with those that settle a new wrapper.
        """
        if block.arm in STEP_ARMS:
            step_ns = self._training(block, arms, steps, lead_in)
            arms.strategy.free()
        else:
            step_ns = self._exchanged(block, arms, sweep)
        device_bytes = self._device.held_bytes()
        self._recorder.note(MemoryRecord(b=block.id, host_bytes=resident_bytes(), device_bytes=device_bytes))
        return step_ns

    def _training(self, block: Block, arms: Arms, steps: int, lead_in: int) -> float:
        arm, feed = (block.trial.world_size, block.arm, block.detailed), arms.feed(block.arm)
        feed.prepare(arm, block.trial.world_size)
        self._together(block)
        feed.resume()
        half = block.trial.batch == arms.half_batch
        with arms.open(block.arm, detailed=block.detailed, half=half) as opened:
            try:
                rows, comms, usage = self._steps(block, arms, opened, steps, lead_in - opened.settled)
            finally:
                feed.pause(arm)
            resolve = self._device.clock.resolve
            done = [
                step_row(resolve(row), resolved(comm.waits, resolve), waits_behind=opened.detail.waits_behind)
                for row, comm in zip(rows, comms, strict=True)
            ]
            collectives = [comm.collectives for comm in comms if comm.collectives is not None]
            parameters = opened.detail.parameters([step.begin_ns for step in done])
        make_ns, make_cpu_ns = feed.cost()
        return self._record(
            block,
            arms,
            done,
            collectives,
            usage,
            withheld=opened.withheld,
            lead_in=lead_in,
            parameters=parameters,
            make_ns=make_ns,
            make_cpu_ns=make_cpu_ns,
        )

    def _exchanged(self, block: Block, arms: Arms, sweep: Sequence[int]) -> float:
        group, clock = self._groups[block.key], self._device.clock
        dtype = torch.float32 if block.arm == FABRIC else arms.wire_dtype
        exchanges = self._messages(block, arms, sweep)
        sent = [message for messages in exchanges for message in messages]
        rows: list[PlainRow] = []
        collectives: list[list[CollectiveRow]] = []
        with self._exchange.reserved(max(LEAD_IN_BYTES, *(message.bytes for message in sent))):
            if block.arm in (FABRIC, PAIRS):
                for kind in dict.fromkeys(message.kind for message in sent):
                    self._exchange.once(group, LEAD_IN_BYTES, kind)
            with clock.window(stamps_of(exchanges)):
                self._together(block)
                with Usage() as usage:
                    for messages in exchanges:
                        row, done = self._exchange.run(group, messages, dtype)
                        rows.append(row)
                        collectives.append(done)
                    self._device.synchronize()
        steps = [step_row(clock.resolve(row)) for row in rows]
        return self._record(block, arms, steps, collectives, usage, lead_in=0)

    def _record(
        self,
        block: Block,
        arms: Arms,
        done: Sequence[AnyStepRow],
        collectives: Sequence[Sequence[CollectiveRow]],
        usage: Usage,
        *,
        withheld: str = "",
        **fields: Any,
    ) -> float:
        """Write a block with other `fields` of a BlockRecord. Returns its mean step, ns."""
        record = BlockRecord(
            id=block.id,
            round=block.round,
            world_size=block.trial.world_size,
            arm=block.arm,
            detailed=block.detailed and not withheld,
            withheld=withheld,
            solo_rank=block.solo_rank,
            batch=block.trial.batch,
            accumulation=arms.micro_steps(block.arm),
            steps=len(done),
            case=block.strategy if self._several else -1,
            **usage.fields(),
            **fields,
        )
        rows = [[resolve_collective(self._device.clock, row) for row in step] for step in collectives]
        rows = [
            [done_in_time(row, step) for row in each] if isinstance(step, StepRow) else each
            for each, step in zip(rows, done, strict=False)
        ]
        self._recorder.block(RecordedBlock(block=record, steps=done, collectives=rows))
        return (done[-1].end_ns - done[0].begin_ns) / len(done)

    def _steps(
        self, block: Block, arms: Arms, opened: Opened, steps: int, lead_in: int
    ) -> tuple[list[list[int]], list[Taken], Usage]:
        """The tokens of each step, as `Loop` takes them, and what it left beside them."""
        rows: list[list[int]] = []
        comms: list[Taken] = []
        loop, stamped = opened.loop, block.arm != PLAIN
        step = loop.stamped if stamped else loop.plain
        detail = opened.detail if stamped else Detail()
        with detail.taking() as take, self._device.clock.window((lead_in + steps) * arms.stamps(opened)):
            self._together(block)
            with Usage() as usage:
                for index in range(-lead_in, steps):
                    row = step()
                    comm = take(loop.forward_end_ns)
                    if index >= 0:
                        rows.append(row)
                        sent = comm.collectives
                        sent = None if sent is None else detail.all_of(sent, behind(row), comm.waits)
                        comms.append(comm._replace(collectives=sent))
                self._device.synchronize()
        if block.arm == PROBE and block.detailed and not opened.withheld:
            arms.messages(detail.wire)
        return rows, comms, usage

    def _messages(self, block: Block, arms: Arms, sweep: Sequence[int]) -> list[list[Message]]:
        """One list per repetition: the model's buckets in a row, or a single message of the sweep."""
        if block.arm == REPLAY:
            return [arms.wire()] * REPLAYED
        if block.arm == PAIRS:
            return [[message._replace(group=0) for message in arms.wire()]] * REPLAYED
        return [[message] for message in sweeping.messages(self._kinds, sweep, self._backend)]

    def _together(self, block: Block) -> None:
        if block.arm != BARE_ONE and block.trial.world_size > 1:
            self._device.barrier(self._groups[block.key].control)
