"""The order in which the blocks of a launch run. Pure: no I/O, no torch.

All trials of a launch are measured together, in rounds. A round visits every world size in random order and, within
it, every arm in random order, one block each. Every arm of every trial therefore sees the same drift of the machine,
and rounds are the independent units of the statistics.

Also which messages the size sweep sends. Gloo's collectives end when the call returns, so each is timed by itself. A
back end that runs on a device's streams (NCCL and its like) needs the host for 10 to 40 us to enqueue a collective. So
many are enqueued for one measurement, behind one that is not timed, and their time is divided by their number, as nccl-
tests does. A single one on an idle device is measured too: what it takes longer is the host's latency.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from scaling.settings.plan import CONTROLS, DETAILS, LIGHT, REPLAYS, SWEEP, WHOLE, Content, Plan, Ranks, Trial
from scaling.settings.run import FABRIC_BYTES_MIN, SWEEP_SHARE, Measure, Spec

BARE_ONE = "bare_one"
BARE_ALL = "bare_all"
DDP_SOLO = "ddp_solo"
PLAIN = "plain"
PROBE = "probe"
VARIANT = "variant"
"""The plain arm under other settings, which `scaling verify` measures beside plain itself."""
REPLAY = "replay"
FABRIC = "fabric"
PAIRS = "pairs"
"""The replay arm between ranks of two hosts, all pairs at once. It separates the hosts' links."""

PHASES = ("backward", "forward", "optimizer", "other")
"""Parts of a step that a collective can belong to, in the order in which records number them."""

REPLAYED = 3
"""Exchanges of all buckets in a block of replay or pairs."""

STEP_ARMS = (BARE_ONE, BARE_ALL, DDP_SOLO, PLAIN, PROBE, VARIANT)
"""Arms whose records are training steps."""
ALONE = (BARE_ONE, BARE_ALL, DDP_SOLO)
"""Arms in which a rank trains the whole model by itself."""
OF_NONE = (BARE_ONE, BARE_ALL, FABRIC)
"""Arms in which no strategy is at work. Strategies side by side share their blocks."""
WRAPPED = (DDP_SOLO, PLAIN, PROBE, VARIANT)
"""Those of them that train with DDP. Each of their blocks makes its own wrapper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One arm of one trial for a few steps. `id` is the same on every rank."""

    id: int
    round: int
    trial: Trial
    arm: str
    detailed: bool = False
    solo_rank: int = -1
    pairing: int = 0
    """Number of the pairing in the pairs arm, from 1; 0 in other arms."""
    strategy: int = 0
    """Index among the strategies that are measured side by side (Spec.strategies)."""
    groups: tuple[Ranks, ...] = ()
    """Sub-groups of ranks that work together. All sub-groups run at the same time; other ranks wait."""

    @property
    def key(self) -> int:
        """Identifies the process groups of this block among those of its launch."""
        return -self.pairing or self.trial.world_size

    @property
    def participants(self) -> int:
        return sum(map(len, self.groups))

    def runs_on(self, rank: int) -> bool:
        return any(rank in group for group in self.groups)


def settling_steps(spec: Spec) -> int:
    """Steps of a new wrapper that are unlike all later ones.

    DDP reduces a single bucket in its first step and makes the right buckets after it. With `static_graph` it does so a
    step later, and PowerSGD compresses from the third step on. A sharded module makes its optimizer's state anew.
    """
    sharded = any(strategy.parallel.sharded for strategy in spec.strategies)
    return 2 if sharded or spec.ddp.static_graph or spec.ddp.comm_hook == "powersgd" else 1


def dropped_steps(spec: Spec, arm: str, lead_in: int) -> int:
    """Steps of a block that are not timed: its lead-in, or what a new wrapper needs and one more, if that is more."""
    return max(lead_in, settling_steps(spec) + 1) if arm in WRAPPED else lead_in


def half_batch(spec: Spec) -> int | None:
    """Half of a rank's batch if a single rank can run it beside the whole one, else None.

    Two batch sizes separate the fixed time of a micro-step from the time that grows with the batch. Predictions for
    another batch or accumulation need both. Strong scaling has two batches already. A data set would need extra
    loaders, and a compiled model would be compiled for two shapes, so these have no half batch.
    """
    whole, micro_steps = spec.batch_per_rank, spec.accumulation_steps
    made_up = spec.data.target is None and not spec.compile and spec.mode == "weak"
    # Batch norm cannot train on one sample.
    enough = whole >= 4 * micro_steps and whole % (2 * micro_steps) == 0
    return whole // 2 if made_up and enough else None


def arms_of(world_size: int, content: Content = WHOLE) -> tuple[tuple[str, bool], ...]:
    """(arm, detailed) pairs of a round, without bare_one. A single rank has no network: it skips those arms."""
    arms: tuple[tuple[str, bool], ...] = ((PLAIN, False),)
    if content.has(CONTROLS):
        arms = (*arms, (PLAIN, False))  # two of plain: their ratio is the A/A floor
    if content.has(LIGHT) and (world_size > 1 or content.has(CONTROLS)):
        arms = (*arms, (PROBE, False))
    if world_size == 1:
        return arms
    if content.has(DETAILS):
        arms = ((BARE_ALL, False), (DDP_SOLO, True), *arms, (PROBE, True))
    if content.has(REPLAYS):
        arms = (*arms, (REPLAY, True))
    return (*arms, (FABRIC, True)) if content.has(SWEEP) else arms


def round_blocks(
    plan: Plan,
    trials: tuple[Trial, ...],
    launch: int,
    number: int,
    baseline: tuple[Trial, ...] = (),
    ranks: int | None = None,
) -> tuple[Block, ...]:
    """The blocks of one round in the order in which they run; the same on every rank.

    The trials in `baseline` (see Plan) run only bare_one. `ranks`: number of ranks of the launch, if not the plan's.

    Trials with the same batch size share their bare_one block. The baseline of a single rank does not depend on the
    world size (weak scaling), so it is measured once a round, at the largest world size. One of these ranks also
    runs half of its batch (see `half_batch`). Some rounds may have no details (Content.detailed).
    """
    rng = random.Random(f"{plan.spec.seed}/{launch}/{number}")
    count = plan.ranks if ranks is None else ranks
    content = plan.content.in_round(number)
    order = [*trials, *baseline]
    if plan.variant is None:
        rng.shuffle(order)
    largest = {t.batch: t for t in sorted(order, key=lambda t: t.world_size)}
    blocks: list[Block] = []
    for trial in order:
        n = trial.world_size
        block = partial(Block, id=0, round=number, trial=trial, groups=plan.sub_groups(n, count))
        if plan.variant is not None:
            visit = _verifying(plan.variant, block)
        else:
            arms = () if trial in baseline else arms_of(n, content)
            visit = [
                block(arm=arm, detailed=detailed, strategy=k)
                for k in range(len(plan.spec.strategies))
                for arm, detailed in arms
                if not k or arm not in OF_NONE
            ]
            if largest[trial.batch] == trial:
                sizes = [t.world_size for t in order if t.batch == trial.batch]
                visit += _alone(plan, content, trial, number, block, sizes)
            if arms and n == count and content.has(REPLAYS):  # every rank knows this trial's messages
                visit += [
                    block(arm=PAIRS, detailed=True, pairing=k, groups=pairs)
                    for k, pairs in enumerate(plan.pairings(count), 1)
                ]
        rng.shuffle(visit)
        blocks += visit
    return tuple(replace(block, id=number * 1000 + index) for index, block in enumerate(blocks))


def _alone(
    plan: Plan, content: Content, trial: Trial, number: int, block: Callable[..., Block], sizes: Sequence[int]
) -> list[Block]:
    """The baseline blocks of a round for world sizes that share them, and a half batch; `block` makes a block.

    One rank runs at a time even where sub-groups work at once: the baseline is a single rank's, and all hosts may be
    emulated on one machine.
    """
    ranks = bare_ranks(sizes, number, BARE_RANKS_A_ROUND if content.has(CONTROLS) else 1)
    blocks = [block(arm=BARE_ONE, solo_rank=r, groups=((r,),)) for r in ranks]
    half = half_batch(plan.spec) if content.has(DETAILS) else None
    if half is not None and trial.world_size > 1:
        blocks.append(replace(blocks[number % len(ranks)], trial=replace(trial, batch=half)))
    return blocks


def _verifying(variant: Spec, block: Callable[..., Block]) -> list[Block]:
    """Each setting twice a round, so that each has an A/A control; `block` makes a block of the trial."""
    plain = block(arm=PLAIN)
    batch = variant.batch_at(plain.trial.world_size)
    other = replace(plain, arm=VARIANT, trial=replace(plain.trial, batch=batch))
    return [plain, plain, other, other]


BARE_RANKS_A_ROUND = 4
"""Number of ranks that run bare_one in a round, at least one a world size. Each has the machine to itself."""


def bare_ranks(world_sizes: Sequence[int], number: int, most: int = BARE_RANKS_A_ROUND) -> tuple[int, ...]:
    """The ranks that run alone in this round: all of them, or a few that rotate.

    `world_sizes`: those that share the baseline. `most`: ranks a round, if there are not more world sizes. Results are
    compared with the baseline of the same round, so every round has at least one rank between each world size and the
    next. The analysis weights a rank by how seldom its turn comes, so these few represent all ranks.
    """
    edges = [0, *sorted(set(world_sizes))]
    stretches = [range(low, high) for low, high in pairwise(edges)]
    turns = [1] * len(stretches)
    for _ in range(min(most, edges[-1]) - len(stretches)):
        fewest = max(range(len(stretches)), key=lambda k: len(stretches[k]) / turns[k])
        turns[fewest] += 1
    return tuple(
        ranks[(number * count + i) % len(ranks)]
        for ranks, count in zip(stretches, turns, strict=True)
        for i in range(count)
    )


def nobody_alone(mode: str) -> str:
    """What no rank ran."""
    return f"no rank ran the whole {'batch' if mode == 'strong' else 'model'} alone"


SMALL_BYTES, SMALL_REPEATS = 2**16, 12
"""Messages up to this size are repeated in a sweep over Gloo, since each is short and noisy."""
SHOT_BYTES, SHOTS = 2**14, 5
"""Messages up to this size are also sent one by one from an idle device, so many times."""
STREAMED_BYTES_MAX = 2**29
"""A sweep over devices goes up to this size at least: on NVLink 64 MiB is not yet the plateau."""
MANY_BYTES, SOME_BYTES = 2**22, 2**26
MANY, SOME, FEW = 20, 10, 5
"""Collectives of a measurement up to MANY_BYTES, up to SOME_BYTES, and above."""


class Message(NamedTuple):
    """One measurement of the sweep, or one message of a replay."""

    kind: int
    """Index into settings.run.KINDS."""
    bytes: int
    """As nccl-tests counts them: the whole result of an all-gather, the whole input of a reduce-scatter."""
    calls: int = 1
    """Collectives that are enqueued behind one that is not timed; 1: a single one, and none before it."""
    group: int = 0
    """Key of its communicator; 0: that of the block."""

    @property
    def sent(self) -> int:
        """Collectives, the one that is not timed included."""
        return self.calls + (self.calls > 1)


def streamed(backend: str) -> bool:
    """Whether a back end's collectives are enqueued on a device."""
    return backend != "gloo"


def largest(measure: Measure, backend: str) -> int:
    """The largest message, bytes, where memory and time allow it."""
    return max(measure.fabric_bytes_max, STREAMED_BYTES_MAX if streamed(backend) else 0)


def sizes(ceiling: int, backend: str) -> Iterable[int]:
    """Sizes up to `ceiling`, rising, bytes."""
    size = FABRIC_BYTES_MIN
    while size <= ceiling:
        yield size
        size *= growth(backend)


def growth(backend: str) -> int:
    """Factor from one size to the next."""
    return 2 if streamed(backend) else 4


def calls(size: int, backend: str) -> int:
    """Collectives of one measurement."""
    if not streamed(backend):
        return 1
    return MANY if size <= MANY_BYTES else SOME if size <= SOME_BYTES else FEW


def affordable(took_s: float, size: int, measure: Measure, backend: str) -> bool:
    """Whether the next size may be sent, given what a collective of this one took."""
    more = growth(backend)
    return took_s * more * calls(size * more, backend) <= measure.budget_s * SWEEP_SHARE


def messages(
    kinds: Sequence[int], message_bytes: Sequence[int], backend: str, repeats: int = SMALL_REPEATS
) -> list[Message]:
    """Every measurement of one sweep over some sizes, bytes. `repeats`: of small messages over Gloo."""
    return [m for kind in kinds for size in message_bytes for m in _at_size(kind, size, backend, repeats)]


def _at_size(kind: int, size: int, backend: str, repeats: int) -> list[Message]:
    if not streamed(backend):
        return [Message(kind, size)] * (repeats if size <= SMALL_BYTES else 1)
    shots = [Message(kind, size)] * (SHOTS if size <= SHOT_BYTES else 0)
    return [*shots, Message(kind, size, calls(size, backend))]
