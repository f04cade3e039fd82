"""What of a launch fits into its budget, by what its pieces take. Pure: no I/O, no torch.

A run fits it beforehand from an estimate (scaling.settings.estimate), and rank 0 again from the steps of its warm-up.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scaling.settings import schedule
from scaling.settings.cases import Case, arms, stages
from scaling.settings.plan import CONTROLS, DETAILS, LIGHT, REPLAYS, SWEEP, WHOLE, Content, Plan, Trial
from scaling.settings.run import LEAST_ROUNDS, WARMUP_SHARE, Measure
from scaling.settings.sample import Traffic, chosen

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
ROUNDS = "all rounds but the first"
"""Parts that only some rounds need to have (settings.plan.SAMPLED)."""
MOSTLY = 0.5
"""A step mostly waits for data if the exchange of its gradients takes a larger share of it."""
ROOM = 1.6
"""A budget that is named has this much room: steps of a launch, or of another tryout, differ from those of this one."""


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
    """What the blocks record; empty before the launch has counted it."""

    def apart_s(self, n: int) -> float:
        """A step of all ranks at once that reduces nothing."""
        step_s = self.step_s.get(n, 0.0)
        return max(min(step_s, self.alone_s.get(n, 0.0)), step_s - self.exchange_s.get(n, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseCosts:
    """About how long the pieces of a launch by cases take, s."""

    step_s: Mapping[tuple[int, int], float]
    """By (world size, case)."""
    change_s: Mapping[int, float] = field(default_factory=dict)
    """Changing to a case, which makes its batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What fits into a budget."""

    content: Content
    warmup_s: float
    rounds_s: float
    """Rounds and all between them."""
    fits: bool
    """False where even the least content takes longer."""
    enough_s: float
    """A `measure.budget_s` that holds the least content which names a cause."""


def allowance_s(measure: Measure) -> float:
    """Seconds that a launch may take after its start: the budget, and the warm-up's share on top.

    Less than FLOOR_S leaves nothing out: the run's start and its report take as long anyway.
    """
    return max(FLOOR_S, measure.longest_s)


def fit_training(
    plan: Plan, trials: tuple[Trial, ...], costs: Costs, *, warm: bool = False, within_s: float | None = None
) -> Fitted:
    """What fits of a launch that takes a step apart. `warm`: the warm-up is over; `within_s`: the time, if given."""
    measure = plan.spec.measure
    steps = max(measure.steps, int(SMALL_STEPS_S / max(1e-4, *costs.step_s.values())))
    within_s = allowance_s(measure) if within_s is None else within_s

    def round_s(content: Content) -> float:
        return _round_s(plan, trials, content, costs, steps, measure.lead_in)

    fitted = _fitted(
        measure,
        lambda least_s: _contents(plan, trials, least_s, _order(costs)),
        least_round_s=lambda content: _round_s(plan, trials, content, costs, 1, 1),
        round_s=round_s,
        warmup_s=None if warm else lambda content, chunk: _warmup_s(plan, trials, content, costs, chunk),
        within_s=within_s,
    )
    if not costs.traffic:
        return fitted
    time_s = min(measure.budget_s, within_s)
    content = chosen(plan, trials, fitted.content, costs.traffic, round_s, steps=steps, rounds_s=time_s)
    return replace(fitted, content=content)


def fit_cases(
    plan: Plan,
    asked: tuple[Case, ...],
    costs: CaseCosts,
    *,
    warm: bool = False,
    within_s: float | None = None,
) -> Fitted:
    """What fits of a launch by cases; `warm` and `within_s` as for `fit_training`."""
    measure = plan.spec.measure

    def visits(content: Content, steps: int) -> float:
        alive = [*_alive(plan, asked, content)] * len(arms(plan.spec))
        return sum(steps * costs.step_s[n, k] + costs.change_s.get(k, 0.0) + BLOCK_S for n, k, _ in alive)

    def round_s(content: Content) -> float:
        """Blocks of cases fill the budget whatever their steps take, up to a second each."""
        blocks = len([*_alive(plan, asked, content)]) * len(arms(plan.spec))
        return max(blocks * (1 + BLOCK_S), visits(content, 3))

    def warmup_s(content: Content, chunk: int) -> float:
        return sum(
            (1 + chunk) * costs.step_s[n, k] + costs.change_s.get(k, 0.0)
            for n, k, largest in _alive(plan, asked, content)
            if n == largest
        )

    return _fitted(
        measure,
        lambda _least_s: _case_contents(plan, asked),
        least_round_s=lambda content: visits(content, 2),
        round_s=round_s,
        warmup_s=None if warm else warmup_s,
        within_s=allowance_s(measure) if within_s is None else within_s,
    )


def _fitted(
    measure: Measure,
    contents: Callable[[Callable[[Content], float]], Iterator[Content]],
    *,
    least_round_s: Callable[[Content], float],
    round_s: Callable[[Content], float],
    warmup_s: Callable[[Content, int], float] | None,
    within_s: float,
) -> Fitted:
    """The first of some contents whose least rounds fit, or the cheapest. `warmup_s`: None where it is over."""

    def least_s(content: Content) -> float:
        rounds_s = sum(least_round_s(content.in_round(k)) for k in range(least_rounds(measure)))
        return rounds_s if warmup_s is None else rounds_s + warmup_s(content, 1)

    tried: list[tuple[float, Content]] = []
    for content in contents(least_s):
        tried.append((least_s(content), content))
        if tried[-1][0] <= within_s:
            break
    fits = tried[-1][0] <= within_s
    least, content = tried[-1] if fits else min(tried, key=lambda pair: pair[0])
    telling = min((seconds for seconds, each in tried if each.has(LIGHT)), default=least)
    warmup, share = 0.0, ROOM
    if warmup_s is not None:
        warmup = max(warmup_s(content, 1), min(warmup_s(content, CHUNK), WARMUP_SHARE * measure.budget_s))
        share = ROOM / (1 + WARMUP_SHARE)  # the warm-up has time beside the budget
    rounds_s = min(measure.rounds_max * round_s(content), measure.budget_s, max(0.0, within_s - warmup))
    return Fitted(
        content=replace(content, whole_s=least_s(WHOLE) * share),
        warmup_s=warmup,
        rounds_s=max(rounds_s, least - warmup if fits else 0.0),
        fits=fits,
        enough_s=telling * share,
    )


def least_rounds(measure: Measure) -> int:
    """The fewest rounds that give an interval."""
    return min(measure.rounds_min, LEAST_ROUNDS)


def _contents(
    plan: Plan, trials: tuple[Trial, ...], least_s: Callable[[Content], float], order: Sequence[str]
) -> Iterator[Content]:
    """All there is, then less and less, in the order of `plan.ORDER`."""
    content = plan.content
    yield content
    if plan.variant is not None:
        return
    for part in order:
        for less in _less(content, part, plan.content.detailed):
            if least_s(less) < least_s(content) * (1 - LEAST_GAIN):
                content = less
                yield content
    for sizes in _fewer(tuple(t.world_size for t in trials)):
        yield replace(content, world_sizes=sizes)


def _less(content: Content, part: str, rounds: tuple[int, ...] | None) -> tuple[Content, ...]:
    """The content without a part; without details, the rest is in all the `rounds` of the settings first."""
    if part == ROUNDS:
        return (replace(content, detailed=(0,)),)
    less = content.less(part)
    if not less.has_sampled:
        return (replace(less, detailed=None),)
    return (replace(less, detailed=rounds), less) if part == DETAILS else (less,)


def _order(costs: Costs) -> tuple[str, ...]:
    """Which parts go first: those that would tell least of what takes the step.

    One round with details tells most of what all of them do, but for intervals. Where ranks mostly wait for data, it
    tells the link's bandwidth and what a prediction starts from, and controls tell little. Elsewhere details cost most.
    """
    largest = max(costs.step_s)
    if costs.exchange_s.get(largest, 0.0) > MOSTLY * costs.step_s[largest]:
        return (ROUNDS, CONTROLS, REPLAYS, SWEEP, DETAILS, LIGHT)
    return (ROUNDS, DETAILS, SWEEP, REPLAYS, CONTROLS, LIGHT)


def _case_contents(plan: Plan, asked: tuple[Case, ...]) -> Iterator[Content]:
    content = plan.content
    yield content
    kept = sorted({case.batch for case in asked if content.has_batch(case.batch)})
    for most in reversed(kept[:-1]):
        content = replace(content, batch_most=most)
        yield content
    for sizes in _fewer(tuple(n for n in plan.spec.world_sizes if content.holds(n))):
        yield replace(content, world_sizes=sizes)


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
    kept = tuple(t for t in trials if content.holds(t.world_size))
    total = 0.0
    for block in schedule.round_blocks(replace(plan, content=content), kept, 0, 0, plan.baseline(kept)):
        n = block.trial.world_size
        if block.arm in schedule.STEP_ARMS:
            step_s = costs.alone_s.get(n, 0.0) if block.arm == schedule.BARE_ONE else costs.step_s.get(n, 0.0)
            step_s = costs.apart_s(n) if block.arm in (schedule.BARE_ALL, schedule.DDP_SOLO) else step_s
            total += (steps + schedule.dropped_steps(plan.spec, block.arm, lead_in)) * step_s
        elif block.arm == schedule.FABRIC:
            total += costs.sweep_s.get(n, 0.0)
        else:
            total += (1 if block.arm == schedule.PAIRS else schedule.REPLAYED) * costs.exchange_s.get(n, 0.0)
        total += BLOCK_S if block.arm == schedule.BARE_ONE else costs.block_s.get(n, BLOCK_S)
    return total


def _warmup_s(plan: Plan, trials: tuple[Trial, ...], content: Content, costs: Costs, chunk: int) -> float:
    """The warm-up of all trials with `chunk` steps of every loop (see scaling.worker.measure.prepare)."""
    total = 0.0
    kept = tuple(t for t in trials if content.holds(t.world_size))
    new, many = schedule.settling_steps(plan.spec) + chunk, len(plan.spec.strategies)
    for trial in (*kept, *plan.baseline(kept)):
        n, step, alone = trial.world_size, costs.step_s[trial.world_size], costs.alone_s[trial.world_size]
        total += many * ((2 + chunk) * alone + (new + chunk) * step)  # it fits; the bare loop; plain, twice
        if plan.variant is not None:
            total += 2 * alone + new * step
        elif n > 1 and content.has(DETAILS):  # DDP alone, the probe's loop, its messages; half a batch
            total += many * (new * costs.apart_s(n) + (new + 1) * step + chunk * alone / 2)
        if n > 1 and content.has(SWEEP):
            total += costs.sweep_s.get(n, 0.0)
    if content.has(DETAILS) and plan.variant is None:
        total += 2 * max(costs.alone_s.values())  # the roofline's steps
    return total


def _alive(plan: Plan, asked: tuple[Case, ...], content: Content) -> Iterator[tuple[int, int, int]]:
    """(world size, case, largest world size of its stage) of all that a content holds."""
    kept = [index for index, case in enumerate(asked) if content.has_batch(case.batch)]
    for stage in stages(plan.spec):
        sizes = [n for n in stage if content.holds(n)]
        yield from ((n, k, max(sizes)) for n, k in itertools.product(sizes, kept))
