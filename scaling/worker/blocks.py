"""One block on one rank: run it, tell its stamps in host time, write it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaling.plan import Block
from scaling.records import BARE_ONE, COLLECTIVES, FABRIC, PAIRS, PLAIN, REPLAY, STEP_ARMS
from scaling.worker.arms import Arms
from scaling.worker.clock import resolve_collective
from scaling.worker.devices import Device
from scaling.worker.exchange import ALL_REDUCE, Exchange, Message, stamps_of
from scaling.worker.groups import Group
from scaling.worker.recorder import Recorder, Usage, resident_bytes
from scaling.worker.step import step_fields

REPLAYS = 3
"""Exchanges of all buckets in a block of replay or pairs."""
SMALL_BYTES, SMALL_REPEATS = 2**16, 12
"""Messages up to this size are swept so often: each is short and noisy."""
LEAD_IN_BYTES = 2**16
"""One message of this size before a sweep or pairs, not recorded: the first after a pause finds everything asleep."""

Rows = list[list[int]]


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
        """`collectives`: names of what the size sweep runs."""
        self._device = device
        self._groups = groups
        self._exchange = exchange
        self._recorder = recorder
        self._kinds = [COLLECTIVES.index(name) for name in collectives]

    def run(self, block: Block, arms: Arms, sweep: Sequence[int], *, steps: int, lead_in: int) -> float:
        """Run and record one block; `sweep`: the sizes of the fabric arm, bytes. Returns the mean of a step, ns."""
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
        resolve = clock.resolve
        fields: dict[str, Any] = {
            "id": block.id,
            "round": block.round,
            "world_size": block.trial.world_size,
            "arm": block.arm,
            "detailed": block.detailed,
            "solo_rank": block.solo_rank,
            "batch": block.trial.batch,
            "accumulation": arms.micro_steps(block.arm),
            "lead_in": lead_in,
            "steps": len(rows),
            "parameters": arms.parameters(block.arm, [resolve(row)[0] for row in rows]),
            "make_ns": making[0],
            "make_cpu_ns": making[1],
        }
        self._recorder.block(
            fields,
            [step_fields(resolve(row)) for row in rows],
            [[resolve_collective(clock, row) for row in step] for step in collectives],
            usage,
        )
        held = {"host_bytes": resident_bytes(), "device_bytes": self._device.held_bytes()}
        self._recorder.note("memory", b=block.id, **held)
        return (resolve(rows[-1])[1] - resolve(rows[0])[0]) / len(rows)

    def _steps(self, block: Block, arms: Arms, steps: int, lead_in: int) -> tuple[Rows, list[Rows], Usage]:
        rows: Rows = []
        collectives: list[Rows] = []
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
    ) -> tuple[Rows, list[Rows], Usage]:
        rows: Rows = []
        collectives: list[Rows] = []
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
    """One list a repetition: the model's buckets in a row, the sweep's messages one by one."""
    if block.arm in (REPLAY, PAIRS):
        return [[(ALL_REDUCE, size) for size in arms.wire()]] * REPLAYS
    repeats = [(size, SMALL_REPEATS if size <= SMALL_BYTES else 1) for size in sweep]
    return [[(kind, size)] for kind in kinds for size, count in repeats for _ in range(count)]
