"""What will run, in which order, and for how long. Pure: no I/O, no torch.

A trial is one world size. All trials of a launch are measured together, in rounds: a round
visits every world size in random order and, within it, every arm in random order, one block
each. So every arm of every trial sees the same drift of the machine, and rounds are the
independent units of the statistics.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import random
from dataclasses import dataclass, replace

from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, FABRIC, PLAIN, PROBE, REPLAY, VARIANT
from scaling.spec import Spec

SCHEMA = 1
BARE_RANKS_A_ROUND = 4
"""bare_one occupies the machine for one rank at a time: up to so many ranks take their turn in a round."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One arm of one trial for a few steps. `id` is the same on every rank."""

    id: int
    round: int
    trial: Trial
    arm: str
    detailed: bool = False
    solo_rank: int = -1

    def runs_on(self, rank: int) -> bool:
        """Whether this rank takes part; the others wait."""
        return rank == self.solo_rank if self.arm == BARE_ONE else rank < self.trial.world_size


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
    plan: Plan, trials: tuple[Trial, ...], launch: int, number: int, baseline: tuple[Trial, ...] = ()
) -> tuple[Block, ...]:
    """The blocks of one round in the order in which they run; the same on every rank.

    Of `baseline` (see Plan) only bare_one is run.

    Ranks that share a batch size share their bare_one block: the baseline of a rank alone does
    not depend on the world size (weak scaling), so it is measured once a round, at the largest.
    """
    rng = random.Random(f"{plan.spec.seed}/{launch}/{number}")
    if plan.variant is not None:
        return _verifying(plan.variant, trials, number, rng)
    visits: list[list[tuple[str, bool, int]]] = []
    order = [*trials, *baseline]
    rng.shuffle(order)
    largest = {t.batch: t for t in sorted(order, key=lambda t: t.world_size)}
    for trial in order:
        arms = () if trial in baseline else arms_of(trial.world_size)
        visit = [(arm, detailed, -1) for arm, detailed in arms]
        if largest[trial.batch] == trial:
            visit += [(BARE_ONE, False, r) for r in bare_ranks(trial.world_size, number)]
        rng.shuffle(visit)
        visits.append(visit)
    blocks: list[Block] = []
    for trial, visit in zip(order, visits, strict=True):
        for arm, detailed, solo in visit:
            blocks.append(
                Block(
                    id=number * 1000 + len(blocks),
                    round=number,
                    trial=trial,
                    arm=arm,
                    detailed=detailed,
                    solo_rank=solo,
                )
            )
    return tuple(blocks)


def _verifying(
    variant: Spec, trials: tuple[Trial, ...], number: int, rng: random.Random
) -> tuple[Block, ...]:
    """Each setting twice a round, for an A/A control of either."""
    visits = []
    for trial in trials:
        other = replace(trial, batch=variant.batch_at(trial.world_size))
        visit = [(PLAIN, trial), (PLAIN, trial), (VARIANT, other), (VARIANT, other)]
        rng.shuffle(visit)
        visits += visit
    return tuple(
        Block(id=number * 1000 + index, round=number, trial=trial, arm=arm)
        for index, (arm, trial) in enumerate(visits)
    )


def bare_ranks(world_size: int, number: int) -> tuple[int, ...]:
    """The ranks whose turn it is to run alone in this round: all of them, or a rotating few."""
    count = min(world_size, BARE_RANKS_A_ROUND)
    return tuple((number * count + i) % world_size for i in range(count))
