"""How many steps a block has, which sizes the fabric sweep takes, and when to stop measuring.

How precisely rank 0 knows its results so far: half-widths of 95 % intervals from rounds, on a log scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from statistics import mean, stdev
from typing import Any

from scaling.records.format import CollectiveRow
from scaling.settings import schedule
from scaling.settings.run import Measure, Spec
from scaling.settings.schedule import BARE_ONE, PLAIN, Block

BLOCK_NS_MIN = 300_000_000
"""Very short steps get longer blocks: a block has to outlast a hiccup of the scheduler."""
BLOCK_STEPS_MAX = 200
STEPS_MIN = 1
SHORT_STEPS = 6
"""A block of fewer steps has a single step of lead-in."""
EXCHANGE_SHARE = 0.15
"""Share of a round, roughly, that replay and the size sweep take."""
LEFT_ROUNDS = 0.2
"""After this much of a round, its length is known well enough to predict the end."""

CASE_S = 1.0
"""Longest block of a case: more rounds are worth more than longer ones."""
CASE_SHARE = 0.8
"""Share of the budget for the blocks of cases; warm-up and changing cases take the rest."""
CASE_LEAST = 2
"""Steps of a block with a single timed one: one runs before it."""
CASE_STEPS_MIN, CASE_STEPS_MAX = 1, 2000


class Pace:
    """Decides when to stop. Rank 0 keeps it and decides for all ranks."""

    def __init__(
        self,
        measure: Measure,
        intervals: Efficiencies | Means,
        *,
        budget_s: float | None = None,
        limit_s: float | None = None,
        kind: Callable[[int], Hashable] = lambda _number: None,
    ) -> None:
        """`budget_s`: for all rounds; None for the measure's. `limit_s`: for the least number of them, if more.

        `kind`: rounds of one kind, by their numbers, measure the same.
        """
        self._measure, self._intervals = measure, intervals
        self._budget_s = measure.budget_s if budget_s is None else budget_s
        self._limit_s = max(self._budget_s, measure.longest_s if limit_s is None else limit_s)
        self._kind = kind
        self._rounds_s: list[float] = []
        self._elapsed_s = 0.0

    def go_on(self, rounds: int, elapsed_s: float) -> bool:
        """Whether to start another round after `rounds` of them.

        The least number of rounds may take as long as the limit, since fewer give no interval.
        """
        self._rounds_s.append(elapsed_s - self._elapsed_s)
        self._elapsed_s = elapsed_s
        measure = self._measure
        if rounds >= measure.rounds_max:
            return False
        alike = [took for k, took in enumerate(self._rounds_s) if self._kind(k) == self._kind(rounds)]
        expected_s = elapsed_s + max((alike or self._rounds_s)[-3:])
        if rounds < measure.rounds_min:
            return expected_s <= self._limit_s or elapsed_s < self._budget_s  # with shorter blocks
        return expected_s <= self._budget_s and not self._precise()

    def over(self, elapsed_s: float) -> bool:
        """Whether a round is to end before its last block: the machine is much slower than it was."""
        return elapsed_s > self._limit_s

    def share(self, rounds: int, elapsed_s: float) -> float:
        """What of a block's steps the next round may take, 0 to 1, so that the least number of rounds still fits."""
        missing, last_s = self._measure.rounds_min - rounds, self._rounds_s[-1]
        left_s = self._budget_s - elapsed_s
        return 1.0 if missing <= 0 or missing * last_s <= left_s else max(0.0, left_s / (missing * last_s))

    def seconds_left(self, rounds: float, elapsed_s: float) -> float | None:
        """Seconds until the last round ends at the latest; None while unknown."""
        if rounds < LEFT_ROUNDS:
            return None
        whole_s = min(self._budget_s, elapsed_s / rounds * self._measure.rounds_max)
        return round(max(0.0, whole_s - elapsed_s), 1)

    def _precise(self) -> bool:
        """Whether every result is known to the target, as far as rank 0 can tell from its own blocks."""
        target, widths = self._measure.target_half_width, self._intervals.half_widths()
        return target is not None and bool(widths) and all(w is not None and w <= target for w in widths)


def block_steps(
    measure: Measure,
    step_ns: Sequence[int],
    *,
    dropped: Sequence[int] | None = None,
    bunch: int = 1,
    budget_s: float | None = None,
) -> tuple[int, int]:
    """(timed, lead-in) steps of every block of a launch, so that rounds_min rounds fit into the budget.

    `step_ns`: about what one step of each block of a round takes. `dropped`: steps that each block drops at least,
    where the lead-in is less. Blocks have a multiple of `bunch` steps. `budget_s`: for all rounds; None for the
    measure's.
    """
    budget_s = measure.budget_s if budget_s is None else budget_s
    least = dropped or [0] * len(step_ns)

    def whole(steps: int) -> int:
        return -(-steps // bunch) * bunch

    longest_ns, round_ns = max(1, *step_ns), max(1, sum(step_ns))

    def affordable(lead_in: int) -> float:
        """Timed steps of a block, with so many dropped before them."""
        drops_ns = sum(ns * max(lead_in, few) for ns, few in zip(step_ns, least, strict=True))
        return (budget_s * 1e9 * (1 - EXCHANGE_SHARE) / measure.rounds_min - drops_ns) / round_ns

    steps = min(BLOCK_STEPS_MAX, max(measure.steps, -(-BLOCK_NS_MIN // longest_ns)))
    if steps <= affordable(measure.lead_in):
        return whole(steps), measure.lead_in
    lead_in = 1 if affordable(0) < SHORT_STEPS else min(measure.lead_in, 2)
    return whole(max(STEPS_MIN, int(affordable(lead_in)))), lead_in


def case_steps(measure: Measure, step_ns: int, *, budget_s: float, blocks: int) -> tuple[int, int]:
    """(timed, lead-in) steps of a block of one case, in a round of `blocks`, so that rounds_min rounds fit."""
    block_s = min(CASE_S, CASE_SHARE * budget_s / measure.rounds_min / blocks)
    fit = int(block_s * 1e9 / max(1, step_ns))
    lead_in = min(measure.lead_in, fit // 4)  # a step runs before each block anyway
    return max(CASE_STEPS_MIN, min(CASE_STEPS_MAX, fit - lead_in)), lead_in


def case_lengths(
    measure: Measure, step_ns: Sequence[int], *, budget_s: float, arms: int
) -> list[tuple[int, int]]:
    """(timed, lead-in) steps of the blocks of each case; cases with long steps take what they must.

    `arms`: blocks of a case in a round.
    """
    each_s = CASE_SHARE * budget_s / measure.rounds_min / arms
    fair_s = each_s / len(step_ns)
    dear = [CASE_LEAST * ns / 1e9 for ns in step_ns if CASE_LEAST * ns / 1e9 > fair_s]
    if len(dear) < len(step_ns):
        fair_s = max(0.0, each_s - sum(dear)) / (len(step_ns) - len(dear))
    share_s = fair_s * measure.rounds_min / CASE_SHARE
    return [case_steps(measure, ns, budget_s=share_s, blocks=1) for ns in step_ns]


def bunch(spec: Spec) -> int:
    """Number of steps in which every data worker gives the same number of batches.

    Workers that began together end together: where steps wait for them, one step waits long and the next few do not
    wait. Only a block of whole bunches has the mean step of a long run.
    """
    workers = spec.data.workers
    return workers // math.gcd(workers, spec.accumulation_steps) if workers else 1


def fabric_sizes(
    ceiling: int,
    measure: Measure,
    backend: str,
    exchange: Callable[[int], CollectiveRow],
    agree: Callable[[int, Any], Any],
) -> list[int]:
    """Sizes of the sweep up to `ceiling`, bytes, as long as one measurement stays affordable.

    Runs each size once, which also warms the connection up. All ranks get the same list.
    """
    sizes: list[int] = []
    for size in schedule.sizes(ceiling, backend):
        row = exchange(size)
        sizes.append(size)
        took_s = (row.done_ns - row.launch_ns) / 1e9
        if not agree(size, schedule.affordable(took_s, size, measure, backend)):
            break
    return sizes


UNITS_MIN = 3
"""With fewer rounds there is no interval."""


class Efficiencies:
    """Efficiency of each strategy and world size, from rank 0's blocks of bare_one and plain in the same round."""

    def __init__(self) -> None:
        self._plain: dict[tuple[int, int], dict[int, list[float]]] = {}
        """By world size and strategy, and round."""
        self._alone: dict[int, dict[int, list[float]]] = {}
        self._batch: dict[int, int] = {}

    def note(self, block: Block, step_ns: float) -> None:
        """Add the mean step of one of rank 0's own blocks."""
        n, batch = block.trial.world_size, block.trial.batch
        if block.arm == PLAIN:
            self._batch[n] = batch
            self._plain.setdefault((n, block.strategy), {}).setdefault(block.round, []).append(step_ns)
        elif block.arm == BARE_ONE:
            self._alone.setdefault(batch, {}).setdefault(block.round, []).append(step_ns)

    def half_width(self, n: int, strategy: int = 0) -> float | None:
        """Half of the 95 % interval of the efficiency at world size n; None with too few rounds."""
        alone = self._alone.get(self._batch[n], {})
        plain = self._plain[n, strategy]
        # Where no rank runs alone the efficiency is over another world size, about as far off as a mean step.
        ratios = [mean(alone[r]) / mean(times) for r, times in plain.items() if r in alone]
        ratios = ratios if alone else [1e9 / mean(times) for times in plain.values()]
        relative = _relative(ratios)
        return None if relative is None else (mean(ratios) if alone else 1.0) * relative

    def half_widths(self) -> Sequence[float | None]:
        """Those of all strategies at all world sizes above 1."""
        return [self.half_width(n, strategy) for n, strategy in self._plain if n > 1]


class Means:
    """Mean step of each of several kinds of blocks."""

    def __init__(self) -> None:
        self._means: dict[Hashable, list[float]] = {}

    def note(self, key: Hashable, step_ns: float) -> None:
        """Add the mean step of one block."""
        self._means.setdefault(key, []).append(step_ns)

    def half_widths(self) -> Sequence[float | None]:
        """Half of the 95 % interval of each mean, as a fraction of it."""
        return [_relative(means) for means in self._means.values()]


def _relative(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of a mean, as a fraction of it; None for too few values."""
    if len(values) < UNITS_MIN:
        return None
    half: float = student(len(values) - 1) * stdev(map(math.log, values)) / len(values) ** 0.5
    return half


def student(degrees: int) -> float:
    """Two-sided 95 % quantile of Student's t: Cornish and Fisher's expansion (Abramowitz, Stegun, 26.7.5).

    Within 1 % from 3 degrees on, 3 % too small at 2.
    """
    z = 1.959964
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + g1 / degrees + g2 / degrees**2 + g3 / degrees**3
