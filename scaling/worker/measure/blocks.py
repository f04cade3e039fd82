"""Run one block on one rank, convert its stamps to host time, and record it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from scaling.records.format import BlockRecord, CollectiveRow, MemoryRecord, PlainRow, RecordedBlock
from scaling.spec.run import COLLECTIVES
from scaling.spec.schedule import BARE_ONE, FABRIC, PAIRS, PLAIN, REPLAY, REPLAYED, STEP_ARMS, Block
from scaling.worker.accelerator.clock import resolve_collective
from scaling.worker.accelerator.devices import Device
from scaling.worker.measure.arms import Arms
from scaling.worker.measure.exchange import ALL_REDUCE, Exchange, Message, stamps_of
from scaling.worker.measure.recorder import Recorder, Usage, resident_bytes
from scaling.worker.measure.step import step_row
from scaling.worker.parallel.groups import Group

SMALL_BYTES, SMALL_REPEATS = 2**16, 12
"""Messages up to this size are repeated in the sweep, since each is short and noisy."""
LEAD_IN_BYTES = 2**16
"""A message of this size runs unrecorded before a sweep or pairs: the first one after a pause is slow."""

Stamps = Sequence[Sequence[int]]
"""Tokens of each step, as `Loop` or `Exchange` takes them."""


class BlockRunner:
    """Runs the blocks of one launch."""

    def __init__(
        self,
        *,
        device: Device,
        groups: Mapping[int, Group],
        exchange: Exchange,
        recorder: Recorder,
        collectives: Sequence[str],
    ) -> None:
        """`collectives`: names of the collectives that the size sweep runs."""
        self._device = device
        self._groups = groups
        self._exchange = exchange
        self._recorder = recorder
        self._kinds = [COLLECTIVES.index(name) for name in collectives]

    def run(self, block: Block, arms: Arms, sweep: Sequence[int], *, steps: int, lead_in: int) -> float:
        """Run and record one block; `sweep`: sizes of the fabric arm, bytes. Returns the mean step, ns."""
        making = (-1, -1)
        if block.arm in STEP_ARMS:
            arm, feed = (block.trial.world_size, block.arm, block.detailed), arms.feed(block.arm)
            feed.prepare(arm, block.trial.world_size)
            try:
                rows, collectives, usage = self._steps(block, arms, steps, lead_in)
            finally:
                feed.pause(arm)
            making = feed.cost()
        else:
            lead_in = 0
            rows, collectives, usage = self._exchanges(
                block,
                _messages(block, arms, sweep, self._kinds),
                torch.float32 if block.arm == FABRIC else arms.wire_dtype,
            )
        clock = self._device.clock
        steps_done = [step_row(clock.resolve(row)) for row in rows]
        record = BlockRecord(
            id=block.id,
            round=block.round,
            world_size=block.trial.world_size,
            arm=block.arm,
            detailed=block.detailed,
            solo_rank=block.solo_rank,
            batch=block.trial.batch,
            accumulation=arms.micro_steps(block.arm),
            lead_in=lead_in,
            steps=len(rows),
            parameters=arms.parameters(block.arm, [step.begin_ns for step in steps_done]),
            make_ns=making[0],
            make_cpu_ns=making[1],
            **usage.fields(),
        )
        done = [[resolve_collective(clock, row) for row in step] for step in collectives]
        self._recorder.block(RecordedBlock(block=record, steps=steps_done, collectives=done))
        device_bytes = self._device.held_bytes()
        self._recorder.note(MemoryRecord(b=block.id, host_bytes=resident_bytes(), device_bytes=device_bytes))
        return (steps_done[-1].end_ns - steps_done[0].begin_ns) / len(steps_done)

    def _steps(
        self, block: Block, arms: Arms, steps: int, lead_in: int
    ) -> tuple[Stamps, list[list[CollectiveRow]], Usage]:
        rows: list[list[int]] = []
        collectives: list[list[CollectiveRow]] = []
        loop = arms.loop(block.arm, detailed=block.detailed, batch=block.trial.batch)
        step = loop.plain if block.arm == PLAIN else loop.stamped
        stamps = (lead_in + steps) * arms.stamps(block.arm, detailed=block.detailed)
        with (
            arms.taking(block.arm, detailed=block.detailed) as take,
            self._device.clock.window(stamps),
        ):
            self._together(block)
            arms.feed(block.arm).resume()
            with Usage() as usage:
                for index in range(-lead_in, steps):
                    row = step()
                    taken = take(loop.forward_end_ns) if take else None
                    if index >= 0:
                        rows.append(row)
                        if taken is not None:
                            collectives.append(taken)
                self._device.synchronize()
        return rows, collectives, usage

    def _exchanges(
        self, block: Block, exchanges: list[list[Message]], dtype: torch.dtype
    ) -> tuple[Stamps, list[list[CollectiveRow]], Usage]:
        rows: list[PlainRow] = []
        collectives: list[list[CollectiveRow]] = []
        group = self._groups[block.key]
        if block.arm in (FABRIC, PAIRS):
            self._exchange.once(group, LEAD_IN_BYTES)
        with self._device.clock.window(stamps_of(exchanges)):
            self._together(block)
            with Usage() as usage:
                for messages in exchanges:
                    row, done = self._exchange.run(group, messages, dtype)
                    rows.append(row)
                    collectives.append(done)
                self._device.synchronize()
        return rows, collectives, usage

    def _together(self, block: Block) -> None:
        if block.arm != BARE_ONE and block.trial.world_size > 1:
            dist.barrier(self._groups[block.key].control)


def _messages(block: Block, arms: Arms, sweep: Sequence[int], kinds: Sequence[int]) -> list[list[Message]]:
    """One list per repetition: the model's buckets in a row, or a single message of the sweep."""
    if block.arm in (REPLAY, PAIRS):
        return [[(ALL_REDUCE, size) for size in arms.wire()]] * REPLAYED
    repeats = [(size, SMALL_REPEATS if size <= SMALL_BYTES else 1) for size in sweep]
    return [[(kind, size)] for kind in kinds for size, count in repeats for _ in range(count)]
