"""How many steps a block has, which sizes the fabric sweep takes, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scaling.spec import Measure

BLOCK_NS_MIN = 300_000_000
"""Blocks of very short steps get more of them: a block is to outlast a scheduler's hiccup."""
BLOCK_STEPS_MAX = 200
STEPS_MIN = 3
EXCHANGE_SHARE = 0.15
"""Of a round, about, for replay and the size sweep."""
SWEEP_SHARE = 0.01
"""One message of the sweep may take this much of the budget."""


class Pace:
    """Kept by rank 0, which decides for all."""

    def __init__(self, measure: Measure, step_ns: Sequence[int]) -> None:
        """`step_ns`: about what one step of each block of a round takes."""
        self._measure = measure
        self._longest_ns = max(1, *step_ns)
        self._round_ns = max(1, sum(step_ns))
        self._rounds_s: list[float] = []
        self._elapsed_s = 0.0

    def block_steps(self) -> tuple[int, int]:
        """Timed steps and lead-in steps of a block: rounds_min rounds are to fit into the budget."""
        measure = self._measure
        steps = min(BLOCK_STEPS_MAX, max(measure.steps, -(-BLOCK_NS_MIN // self._longest_ns)))
        affordable = measure.budget_s * 1e9 * (1 - EXCHANGE_SHARE) / measure.rounds_min / self._round_ns
        if steps + measure.lead_in <= affordable:
            return steps, measure.lead_in
        lead_in = 1 if affordable < 2 * STEPS_MIN else min(measure.lead_in, 2)
        return max(STEPS_MIN, int(affordable) - lead_in), lead_in

    def go_on(self, rounds: int, elapsed_s: float) -> bool:
        """Whether to start another round after `rounds` of them."""
        self._rounds_s.append(elapsed_s - self._elapsed_s)
        self._elapsed_s = elapsed_s
        measure = self._measure
        if rounds >= measure.rounds_max:
            return False
        affordable = elapsed_s + max(self._rounds_s[-3:]) <= measure.budget_s
        if rounds < measure.rounds_min:
            return affordable or elapsed_s < measure.budget_s / 2
        return affordable

    def seconds_left(self, rounds: float, elapsed_s: float) -> float | None:
        """Until the last round ends, None while unknown."""
        if rounds < 0.2:
            return None
        return round(
            max(0.0, min(self._measure.budget_s, elapsed_s / rounds * self._measure.rounds_max) - elapsed_s),
            1,
        )


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
    size = 2**10
    while size <= ceiling:
        row = exchange(size)
        sizes.append(size)
        if not agree(size, (row[6] - row[5]) * 4 <= budget_s * SWEEP_SHARE * 1e9):
            break
        size *= 4
    return sizes
