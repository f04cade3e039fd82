"""Which steps of an own loop are recorded, and as which arm. The step's number decides, the same on every rank.

Steps after the warm-up fall into slots of ROUND_STEPS. A slot that is taken (records.format.generation) is a round: one
block of consecutive steps of every arm, in random order, with plain twice for the A/A floor.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from scaling.records.format import generation
from scaling.spec.schedule import PLAIN, PROBE

WARMUP = 5
"""Steps skipped at the start: DDP rebuilds its buckets in the second one, and other things are made lazily."""
_ARMS = ((PLAIN, False, 3), (PLAIN, False, 3), (PROBE, False, 2), (PROBE, True, 2))
"""(arm, detailed, steps). A detailed step costs some 0.4 ms of CPU time per bucket, so there are few. Two is the
minimum: the first step of a block gives a begin, and each later one a period."""
ROUND_STEPS = sum(steps for _, _, steps in _ARMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A block of consecutive steps."""

    id: int
    round: int
    arm: str
    detailed: bool
    first: int
    """Number of its first step, counted from 0."""
    steps: int

    @property
    def stamped(self) -> bool:
        """Whether it takes phase stamps."""
        return self.arm == PROBE


def round_of(slot: int) -> tuple[Planned, ...]:
    """The blocks of a slot, in order; none where the slot is not taken."""
    if slot % 2 ** generation(slot):
        return ()
    order = list(_ARMS)
    random.Random(f"own/{slot}").shuffle(order)
    blocks: list[Planned] = []
    first = WARMUP + slot * ROUND_STEPS
    for index, (arm, detailed, steps) in enumerate(order):
        blocks.append(
            Planned(
                id=slot * len(_ARMS) + index,
                round=slot,
                arm=arm,
                detailed=detailed,
                first=first,
                steps=steps,
            )
        )
        first += steps
    return tuple(blocks)


def slot_of(step: int) -> int:
    """The slot of a step; below 0 in the warm-up."""
    return (step - WARMUP) // ROUND_STEPS
