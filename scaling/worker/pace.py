"""How many steps a block has, which sizes the fabric sweep takes, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from scaling.plan import Block
from scaling.records import BARE_ONE, PLAIN
from scaling.spec import FABRIC_BYTES_MIN, OVERRUN, Measure, Spec

BLOCK_NS_MIN = 300_000_000
"""Blocks of very short steps get more of them: a block is to outlast a scheduler's hiccup."""
BLOCK_STEPS_MAX = 200
STEPS_MIN = 3
UNITS_MIN = 3
"""Below three rounds nothing is known."""
EXCHANGE_SHARE = 0.15
"""Of a round, about, for replay and the size sweep."""
SWEEP_SHARE = 0.01
"""One message of the sweep may take this much of the budget."""
LEFT_ROUNDS = 0.2
"""From here on a round's length is known well enough to say when the last one ends."""


class Pace:
    """Kept by rank 0, which decides for all."""

    def __init__(self, measure: Measure, step_ns: Sequence[int], *, bunch: int = 1) -> None:
        """`step_ns`: about what one step of each block of a round takes; blocks have a multiple of `bunch` steps."""
        self._measure = measure
        self._bunch = bunch
        self._longest_ns = max(1, *step_ns)
        self._round_ns = max(1, sum(step_ns))
        self._rounds_s: list[float] = []
        self._elapsed_s = 0.0
        self._plain: dict[int, dict[int, list[float]]] = {}
        self._alone: dict[int, dict[int, list[float]]] = {}
        self._batch: dict[int, int] = {}

    def block_steps(self) -> tuple[int, int]:
        """Timed steps and lead-in steps of a block: rounds_min rounds are to fit into the budget."""
        measure = self._measure
        steps = min(BLOCK_STEPS_MAX, max(measure.steps, -(-BLOCK_NS_MIN // self._longest_ns)))
        affordable = measure.budget_s * 1e9 * (1 - EXCHANGE_SHARE) / measure.rounds_min / self._round_ns
        if steps + measure.lead_in <= affordable:
            return self._whole(steps), measure.lead_in
        lead_in = 1 if affordable < 2 * STEPS_MIN else min(measure.lead_in, 2)
        return self._whole(max(STEPS_MIN, int(affordable) - lead_in)), lead_in

    def _whole(self, steps: int) -> int:
        """Up to the next whole number of bunches."""
        return -(-steps // self._bunch) * self._bunch

    def go_on(self, rounds: int, elapsed_s: float) -> bool:
        """Whether to start another round after `rounds` of them."""
        self._rounds_s.append(elapsed_s - self._elapsed_s)
        self._elapsed_s = elapsed_s
        measure = self._measure
        if rounds >= measure.rounds_max:
            return False
        expected_s = elapsed_s + max(self._rounds_s[-3:])
        if rounds < measure.rounds_min:
            return expected_s <= OVERRUN * measure.budget_s
        return expected_s <= measure.budget_s and not self._precise()

    def note(self, block: Block, step_ns: float) -> None:
        """What a step took in one of rank 0's own blocks."""
        n, batch = block.trial.world_size, block.trial.batch
        if block.arm == PLAIN:
            self._batch[n] = batch
            self._plain.setdefault(n, {}).setdefault(block.round, []).append(step_ns)
        elif block.arm == BARE_ONE:
            self._alone.setdefault(batch, {}).setdefault(block.round, []).append(step_ns)

    def _precise(self) -> bool:
        """Whether every efficiency is known to the target, as far as rank 0 can tell from its own blocks."""
        target = self._measure.target_half_width
        widths = [self.half_width(n) for n in self._plain if n > 1]
        return target is not None and bool(widths) and all(w is not None and w <= target for w in widths)

    def half_width(self, n: int) -> float | None:
        """Half of the efficiency's 95 % interval at world size n, from paired blocks of the rounds so far."""
        alone = self._alone.get(self._batch[n], {})
        ratios = [mean(alone[r]) / mean(plain) for r, plain in self._plain[n].items() if r in alone]
        if len(ratios) < UNITS_MIN:
            return None
        spread = stdev(math.log(ratio) for ratio in ratios) / len(ratios) ** 0.5
        half: float = mean(ratios) * student(len(ratios) - 1) * spread
        return half

    def seconds_left(self, rounds: float, elapsed_s: float) -> float | None:
        """Until the last round ends, None while unknown."""
        if rounds < LEFT_ROUNDS:
            return None
        return round(
            max(0.0, min(self._measure.budget_s, elapsed_s / rounds * self._measure.rounds_max) - elapsed_s),
            1,
        )


def bunch(spec: Spec) -> int:
    """Steps in which every data worker gives the same number of batches.

    Workers that began together end together: where steps wait for them, one step waits long and the next few
    not at all. Only a block of whole bunches has the mean step of a long run.
    """
    workers = spec.data.workers
    return workers // math.gcd(workers, spec.accumulation_steps) if workers else 1


def student(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t: Cornish and Fisher's expansion (Abramowitz, Stegun, 26.7.5).

    Within 1 % from 3 degrees on, 3 % too small at 2.
    """
    z = 1.959964
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / degrees + g2 / degrees**2 + g3 / degrees**3


def fabric_sizes(
    ceiling: int,
    budget_s: float,
    exchange: Callable[[int], list[int]],
    agree: Callable[[int, Any], Any],
) -> list[int]:
    """Powers of four from 1 KiB up to `ceiling`, as far as one message stays affordable.

    Runs each size once, which also warms the path up. All ranks come to the same list.
    """
    sizes: list[int] = []
    size = FABRIC_BYTES_MIN
    while size <= ceiling:
        row = exchange(size)
        sizes.append(size)
        if not agree(size, (row[6] - row[5]) * 4 <= budget_s * SWEEP_SHARE * 1e9):
            break
        size *= 4
    return sizes
