"""What will run, in which order, and for how long. Pure: no I/O, no torch.

A trial is one world size. All trials of a launch are measured together, in rounds: a round
visits every world size in random order and, within it, every arm in random order, one block
each. So every arm of every trial sees the same drift of the machine, and rounds are the
independent units of the statistics.

Where ranks are spread over the hosts, a trial runs on as many disjoint sub-groups of the launch as
there is room for, all at the same time: few ranks stand idle, and each host shows what it is worth.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, FABRIC, PAIRS, PLAIN, PROBE, REPLAY, VARIANT
from scaling.spec import Spec

Ranks = tuple[int, ...]

SCHEMA = 1
BARE_RANKS_A_ROUND = 4
"""bare_one occupies the machine for one rank at a time: so many take their turn in a round, or one a world size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One world size of a run."""

    world_size: int
    hosts: int
    batch: int
    """Samples a rank and optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything a worker needs; written to plan.json."""

    schema: int
    id: str
    created: str
    version: str
    spec: Spec
    trials: tuple[Trial, ...]
    variant: Spec | None = None
    """Set for a verification: plain steps of `spec` and of this, in turns, and nothing else."""
    commit: str = ""
    """Of the code in the folder that the run was started from (see `scaling.git`)."""

    @property
    def ranks(self) -> int:
        """Processes of a launch: enough for the largest trial."""
        return max(t.world_size for t in self.trials)

    @property
    def hosts(self) -> int:
        """Hosts of a launch."""
        return max(t.hosts for t in self.trials)

    def baseline(self, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
        """What `trials` need beside them: strong scaling's one rank with the whole batch, where it is not one of them.

        A launch that measures what another left over brings its own: arms of two launches do not pair.
        """
        if self.spec.mode != "strong" or self.variant is not None or any(t.world_size == 1 for t in trials):
            return ()
        return tuple(t for t in self.trials if t.world_size == 1)

    def sub_groups(self, world_size: int, ranks: int | None = None) -> tuple[Ranks, ...]:
        """The ranks that train together at a world size, all sub-groups at the same time; the first is reported.

        One where ranks are packed, and of one rank alone, the base of every efficiency: it has no neighbours.
        `ranks`: of the launch, where it has not as many as the plan.
        """
        together = self.spec.topology.spread and world_size > 1 and not self.spec.by_case
        count = (self.ranks if ranks is None else ranks) // world_size if together else 1
        return tuple(tuple(range(g * world_size, (g + 1) * world_size)) for g in range(count))

    def pairings(self, ranks: int | None = None) -> tuple[tuple[Ranks, ...], ...]:
        """Pairs of ranks on two hosts; a pairing's are disjoint, and all pairings together pair a host with two others.

        Neighbours on the ring of ranks, which go round the hosts: every other pair, the rest, and of an odd ring
        the one that closes it. Empty where ranks are packed, and where a host has no two others.
        """
        count, topology = self.ranks if ranks is None else ranks, self.spec.topology
        if (
            not topology.spread
            or topology.hosts_of(count) < 3
            or self.spec.by_case
            or self.variant is not None
        ):
            return ()
        ring = [(r, (r + 1) % count) for r in range(count)]
        even = count - count % 2
        apart = [
            tuple((min(p), max(p)) for p in pairs if topology.host_of(p[0]) != topology.host_of(p[1]))
            for pairs in (ring[0:even:2], ring[1:even:2], ring[even:])
        ]
        return tuple(pairs for pairs in apart if pairs)

    def nominal_bit_s(self, world_size: int) -> float | None:
        """What the topology promises a ring at a world size, with all of its sub-groups at work; None: not known."""
        at_work = sum(map(len, self.sub_groups(world_size)))
        return self.spec.topology.nominal_bit_s(world_size, at_work)


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
    """Of the pairs arm, from 1."""
    groups: tuple[Ranks, ...] = ()
    """Ranks that work together, all of these sub-groups at the same time; the others wait."""

    @property
    def key(self) -> int:
        """Of the group that a rank works in, among the groups of its launch."""
        return -self.pairing or self.trial.world_size

    @property
    def participants(self) -> int:
        """How many ranks take part."""
        return sum(map(len, self.groups))

    def runs_on(self, rank: int) -> bool:
        """Whether this rank takes part."""
        return any(rank in group for group in self.groups)


def run_id(now: dt.datetime, salt: str) -> str:
    """A fresh id, `<date>-<time>-<hash>`."""
    text = hashlib.sha256(f"{salt}{now.isoformat()}{os.getpid()}".encode()).hexdigest()[:8]
    return f"{now:%Y%m%d-%H%M%S}-{text}"


def make_plan(spec: Spec, *, run_id: str, created: str, version: str, commit: str = "") -> Plan:
    """The plan of a checked spec."""
    trials = tuple(
        Trial(world_size=n, hosts=spec.topology.hosts_of(n), batch=spec.batch_at(n)) for n in spec.world_sizes
    )
    return Plan(
        schema=SCHEMA,
        id=run_id,
        created=created,
        version=version,
        spec=spec,
        trials=trials,
        commit=commit,
    )


def half_batch(spec: Spec) -> int | None:
    """Half of a rank's batch, where one rank alone can run it beside the whole one.

    What a half batch does not spare is what every micro-step pays whatever its size: predictions of another
    batch or accumulation need it. Strong scaling has two batches already; a data set would need loaders of its
    own for it, and a compiled model would be compiled for two shapes.
    """
    whole, micro_steps = spec.batch_per_rank, spec.accumulation_steps
    made_up = spec.data.target is None and not spec.compile and spec.mode == "weak"
    enough = (
        whole >= 4 * micro_steps and whole % (2 * micro_steps) == 0
    )  # batch norm cannot train on one sample
    return whole // 2 if made_up and enough else None


def arms_of(world_size: int) -> tuple[tuple[str, bool], ...]:
    """(arm, detailed) pairs of a round, bare_one aside. One rank alone has neighbours and a wire in no sense."""
    plain = ((PLAIN, False), (PLAIN, False), (PROBE, False))  # two of plain: their ratio is the A/A floor
    if world_size == 1:
        return plain
    return (
        (BARE_ALL, False),
        (DDP_SOLO, True),
        *plain,
        (PROBE, True),
        (REPLAY, True),
        (FABRIC, True),
    )


def round_blocks(
    plan: Plan,
    trials: tuple[Trial, ...],
    launch: int,
    number: int,
    baseline: tuple[Trial, ...] = (),
    ranks: int | None = None,
) -> tuple[Block, ...]:
    """The blocks of one round in the order in which they run; the same on every rank.

    Of `baseline` (see Plan) only bare_one is run. `ranks`: of the launch, where it has not as many as the plan.

    Ranks that share a batch size share their bare_one block: the baseline of a rank alone does
    not depend on the world size (weak scaling), so it is measured once a round, at the largest. One of
    them runs half of its batch as well (see `half_batch`).
    """
    rng = random.Random(f"{plan.spec.seed}/{launch}/{number}")
    count = plan.ranks if ranks is None else ranks
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
            arms = () if trial in baseline else arms_of(n)
            visit = [block(arm=arm, detailed=detailed) for arm, detailed in arms]
            if largest[trial.batch] == trial:
                sizes = [t.world_size for t in order if t.batch == trial.batch]
                visit += _alone(plan.spec, trial, number, block, sizes)
            if arms and n == count:  # every rank knows this trial's messages
                visit += [
                    block(arm=PAIRS, detailed=True, pairing=k, groups=pairs)
                    for k, pairs in enumerate(plan.pairings(count), 1)
                ]
        rng.shuffle(visit)
        blocks += visit
    return tuple(replace(block, id=number * 1000 + index) for index, block in enumerate(blocks))


def _alone(
    spec: Spec, trial: Trial, number: int, block: Callable[..., Block], sizes: Sequence[int]
) -> list[Block]:
    """The baseline of a round for world sizes that share it, and half of a batch; `block` makes one of the trial.

    One rank at a time even where sub-groups work at once: it is that of a rank alone, and hosts can be emulated
    on one machine.
    """
    ranks = bare_ranks(sizes, number)
    blocks = [block(arm=BARE_ONE, solo_rank=r, groups=((r,),)) for r in ranks]
    half = half_batch(spec)
    if half is not None and trial.world_size > 1:
        blocks.append(replace(blocks[number % len(ranks)], trial=replace(trial, batch=half)))
    return blocks


def _verifying(variant: Spec, block: Callable[..., Block]) -> list[Block]:
    """Each setting twice a round, for an A/A control of either; `block` makes one of a trial."""
    plain = block(arm=PLAIN)
    batch = variant.batch_at(plain.trial.world_size)
    other = replace(plain, arm=VARIANT, trial=replace(plain.trial, batch=batch))
    return [plain, plain, other, other]


def bare_ranks(world_sizes: Sequence[int], number: int) -> tuple[int, ...]:
    """The ranks whose turn it is to run alone in this round: all of them, or a few that rotate.

    `world_sizes`: those that share the baseline. Each has ranks of its own among them in every round, since what is
    compared with it was measured in that round: one rank at least between each size and the next, and as the
    analysis weights a rank by how seldom its turn comes, they stand for all.
    """
    edges = [0, *sorted(set(world_sizes))]
    stretches = [range(low, high) for low, high in pairwise(edges)]
    turns = [1] * len(stretches)
    for _ in range(min(BARE_RANKS_A_ROUND, edges[-1]) - len(stretches)):
        fewest = max(range(len(stretches)), key=lambda k: len(stretches[k]) / turns[k])
        turns[fewest] += 1
    return tuple(
        ranks[(number * count + i) % len(ranks)]
        for ranks, count in zip(stretches, turns, strict=True)
        for i in range(count)
    )
