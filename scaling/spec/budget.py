"""Fit what a launch measures into its budget, from the time of a step. Pure: no I/O, no torch.

`scaling plan --time` and `scaling run` fit it from the tryout's steps; rank 0 fits it again from its own.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from scaling.spec.cases import Case, arms, stages
from scaling.spec.plan import Plan, Trial
from scaling.spec.promise import CONTROLS, DETAILS, REPLAYS, SWEEP, WHOLE, Content, Fitted
from scaling.spec.run import LEAST_ROUNDS, WARMUP_SHARE, Measure
from scaling.spec.sample import Traffic, chosen
from scaling.spec.schedule import (
    BARE_ONE,
    FABRIC,
    PAIRS,
    REPLAYED,
    STEP_ARMS,
    dropped_steps,
    round_blocks,
    settling_steps,
)

BLOCK_S = 0.04
"""What beginning and ending a block takes, without its steps."""
SMALL_STEPS_S = 0.3
"""Blocks of short steps last about this long (see scaling.worker.measure.pace)."""
FLOOR_S = 20.0
"""Nothing is left out of a launch that takes no longer than this."""
CHUNK = 3
"""Steps of each loop in a warm-up that has time for them."""
LEAST_GAIN = 0.02
"""A part that takes a smaller fraction of the time is not left out: that would gain nothing."""
ROOM = 1.3
"""A budget that is named has this much room: steps in a launch differ from those of a tryout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """About how long the pieces of a launch take, s. All are by world size."""

    step_s: Mapping[int, float]
    alone_s: Mapping[int, float]
    """A step of one rank while the others wait."""
    exchange_s: Mapping[int, float]
    """One exchange of all gradients."""
    sweep_s: Mapping[int, float]
    block_s: Mapping[int, float] = field(default_factory=dict)
    """To begin and end a block of all ranks; BLOCK_S where it is not said, and of one rank alone."""
    traffic: Mapping[int, Traffic] = field(default_factory=dict)
    """What the blocks record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCosts:
    """About how long the pieces of a launch by cases take, s."""

    step_s: Mapping[tuple[int, int], float]
    """By (world size, case)."""
    change_s: Mapping[int, float]
    """Changing to a case, which makes its batch."""


def allowance_s(measure: Measure) -> float:
    """Seconds that a launch may take after its start: the budget, and the warm-up's share on top.

    Less than FLOOR_S leaves nothing out: the run's start and its report take as long anyway.
    """
    return max(FLOOR_S, measure.longest_s)


def fit_training(
    plan: Plan, trials: tuple[Trial, ...], costs: Costs, *, warm: bool = False, within_s: float | None = None
) -> Fitted:
    """What fits of a launch that takes a training step apart.

    `warm`: the warm-up is over. `within_s`: time for it, if not the allowance.
    """
    measure = plan.spec.measure
    within = allowance_s(measure) if within_s is None else within_s

    def least_s(content: Content) -> float:
        rounds = _least_rounds(measure) * _round_s(plan, trials, content, costs, 1, 1)
        return rounds if warm else rounds + _warmup_s(plan, trials, content, costs, 1)

    content, fits = _first_that_fits(_contents(plan, trials, least_s), least_s, within)
    warmup = 0.0
    if not warm:
        shared = WARMUP_SHARE * measure.budget_s
        by_chunk = [_warmup_s(plan, trials, content, costs, chunk) for chunk in (CHUNK, 2, 1)]
        warmup = next((s for s in by_chunk if s <= shared), by_chunk[-1])
    longest = max(1e-4, *costs.step_s.values())
    steps = max(measure.steps, int(SMALL_STEPS_S / longest))

    def round_s(of: Content) -> float:
        return _round_s(plan, trials, of, costs, steps, measure.lead_in)

    time_s = min(measure.budget_s, max(0.0, within - warmup))
    content = chosen(plan, trials, content, costs.traffic, round_s, steps=steps, rounds_s=time_s)
    detailed = measure.rounds_max if content.detailed is None else len(content.detailed)
    others_s = (measure.rounds_max - detailed) * round_s(content.without_details())
    rounds_s = detailed * round_s(content) + others_s
    return _fitted(measure, content, least_s, warmup, rounds_s, within, fits=fits, warm=warm)


def fit_cases(
    plan: Plan,
    cases: tuple[Case, ...],
    costs: CaseCosts,
    *,
    warm: bool = False,
    within_s: float | None = None,
) -> Fitted:
    """What fits of a launch by cases; see `fit_training`."""
    measure = plan.spec.measure
    within = allowance_s(measure) if within_s is None else within_s

    def least_s(content: Content) -> float:
        rounds = _least_rounds(measure) * _cases_round_s(plan, cases, content, costs, 2)
        return rounds if warm else rounds + _cases_warmup_s(plan, cases, content, costs, 2)

    content, fits = _first_that_fits(_case_contents(plan, cases), least_s, within)
    warmup = 0.0
    if not warm:
        shared = WARMUP_SHARE * measure.budget_s
        by_steps = [_cases_warmup_s(plan, cases, content, costs, 1 + steps) for steps in (CHUNK, 2, 1)]
        warmup = next((s for s in by_steps if s <= shared), by_steps[-1])
    # Blocks of cases fill the budget whatever their steps take, up to a second each.
    blocks = sum(len(alive) for _, alive in _alive(plan, cases, content)) * len(arms(plan.spec))
    rounds_s = measure.rounds_max * max(
        blocks * (1 + BLOCK_S), _cases_round_s(plan, cases, content, costs, 3)
    )
    return _fitted(measure, content, least_s, warmup, rounds_s, within, fits=fits, warm=warm)


def _least_rounds(measure: Measure) -> int:
    return min(measure.rounds_min, LEAST_ROUNDS)


def _first_that_fits(
    contents: Iterator[Content], least_s: Callable[[Content], float], within: float
) -> tuple[Content, bool]:
    """The first content that fits, or the cheapest where none does."""
    tried: list[tuple[float, Content]] = []
    for content in contents:
        took = least_s(content)
        if took <= within:
            return content, True
        tried.append((took, content))
    return min(tried, key=lambda one: one[0])[1], False


def _fitted(
    measure: Measure,
    content: Content,
    least_s: Callable[[Content], float],
    warmup: float,
    rounds_s: float,
    within: float,
    *,
    fits: bool,
    warm: bool,
) -> Fitted:
    share = ROOM if warm else ROOM / (1 + WARMUP_SHARE)  # the warm-up has time beside the budget
    least = least_s(content) - warmup
    return Fitted(
        content=dataclasses.replace(content, whole_s=least_s(WHOLE) * share),
        warmup_s=warmup,
        rounds_s=max(min(rounds_s, measure.budget_s, max(0.0, within - warmup)), least if fits else 0.0),
        fits=fits,
        enough_s=least_s(content) * share,
    )


def _contents(
    plan: Plan, trials: tuple[Trial, ...], least_s: Callable[[Content], float]
) -> Iterator[Content]:
    """All there is, then less and less, in the order of `promise.ORDER`."""
    content = plan.content
    yield content
    if plan.variant is not None:
        return
    for part in (DETAILS, SWEEP, REPLAYS, CONTROLS):
        if content.has(part):
            less = dataclasses.replace(content, without=(*content.without, part))
            if least_s(less) < least_s(content) * (1 - LEAST_GAIN):
                content = less
                yield content
    for sizes in _fewer(tuple(t.world_size for t in trials)):
        yield dataclasses.replace(content, world_sizes=sizes)


def _case_contents(plan: Plan, cases: tuple[Case, ...]) -> Iterator[Content]:
    content = plan.content
    yield content
    held = sorted({case.batch for case in cases if content.has_batch(case.batch)})
    for most in reversed(held[:-1]):
        content = dataclasses.replace(content, batch_most=most)
        yield content
    for sizes in _fewer(tuple(n for n in plan.spec.world_sizes if content.holds(n))):
        yield dataclasses.replace(content, world_sizes=sizes)


def _fewer(sizes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Fewer and fewer world sizes: those in the middle go first, the larger before the smaller, then the smallest.

    Where not even the largest alone fits, each of the others alone: something is better than nothing.
    """
    ordered = sorted(sizes)
    kept = list(ordered)
    for gone in [*reversed(ordered[1:-1]), *ordered[:1]]:
        if len(kept) > 1:
            kept.remove(gone)
            yield tuple(kept)
    for alone in reversed([n for n in ordered[:-1] if n > 1]):
        yield (alone,)


def _round_s(
    plan: Plan, trials: tuple[Trial, ...], content: Content, costs: Costs, steps: int, lead_in: int
) -> float:
    """One round whose blocks have `steps` timed steps."""
    held = tuple(t for t in trials if content.holds(t.world_size))
    planned = dataclasses.replace(plan, content=content)
    total = 0.0
    for block in round_blocks(planned, held, 0, 0, plan.baseline(held)):
        n = block.trial.world_size
        if block.arm in STEP_ARMS:
            one = costs.alone_s if block.arm == BARE_ONE else costs.step_s
            total += (steps + dropped_steps(plan.spec, block.arm, lead_in)) * one.get(n, 0.0)
        elif block.arm in (FABRIC, PAIRS):
            total += costs.sweep_s.get(n, 0.0) if block.arm == FABRIC else costs.exchange_s.get(n, 0.0)
        else:
            total += REPLAYED * costs.exchange_s.get(n, 0.0)
        total += BLOCK_S if block.arm == BARE_ONE else costs.block_s.get(n, BLOCK_S)
    return total


def _warmup_s(plan: Plan, trials: tuple[Trial, ...], content: Content, costs: Costs, chunk: int) -> float:
    """The warm-up of all trials with `chunk` steps of every loop (see scaling.worker.measure.prepare)."""
    total = 0.0
    held = tuple(t for t in trials if content.holds(t.world_size))
    for trial in (*held, *plan.baseline(held)):
        n, details = trial.world_size, content.has(DETAILS)
        step, alone = costs.step_s[n], costs.alone_s[n]
        new, many = settling_steps(plan.spec) + chunk, len(plan.spec.strategies)
        total += many * (
            (2 + chunk) * alone + (new + chunk) * step
        )  # it fits; the bare loop; plain, and again timed
        if plan.variant is not None:
            total += 2 * alone + new * step
        elif n > 1 and details:  # DDP alone, the probe's loop, its messages; half a batch
            total += many * ((2 * new + 1) * step + chunk * alone / 2)
        if n > 1 and content.has(SWEEP):
            total += costs.sweep_s.get(n, 0.0)
    if content.has(DETAILS) and plan.variant is None:
        total += 2 * max(costs.alone_s.values())  # the roofline's steps
    return total


def _alive(
    plan: Plan, cases: tuple[Case, ...], content: Content
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The largest world size of each stage, and its (world size, case) pairs."""
    held = [index for index, case in enumerate(cases) if content.has_batch(case.batch)]
    for stage in stages(plan.spec):
        sizes = [n for n in stage if content.holds(n)]
        if sizes:
            yield max(sizes), list(itertools.product(sizes, held))


def _cases_round_s(
    plan: Plan, cases: tuple[Case, ...], content: Content, costs: CaseCosts, steps: int
) -> float:
    visits = [pair for _, alive in _alive(plan, cases, content) for pair in alive] * len(arms(plan.spec))
    return sum(steps * costs.step_s[n, k] + costs.change_s[k] + BLOCK_S for n, k in visits)


def _cases_warmup_s(
    plan: Plan, cases: tuple[Case, ...], content: Content, costs: CaseCosts, steps: int
) -> float:
    return sum(
        steps * costs.step_s[n, k] + costs.change_s[k]
        for largest, alive in _alive(plan, cases, content)
        for n, k in alive
        if n == largest
    )
