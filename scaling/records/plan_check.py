"""The plan as the records show it: their batches, world sizes and degrees win over plan.json, which is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import polars as pl

from scaling.errors import InputError
from scaling.records.frames import Frame, in_memory
from scaling.records.rank_file import RankFile
from scaling.records.tables import Tables
from scaling.settings.cases import ARMS
from scaling.settings.parallel import AXES, REST, MeshError, Parallel, divisors, is_axis
from scaling.settings.plan import Plan, Trial
from scaling.settings.run import Spec, Vary
from scaling.settings.schedule import PLAIN

Seen = tuple[frozenset[int], frozenset[int]]


def as_communicated(plan: Plan, files: Iterable[RankFile]) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the degrees whose communicators rank 0 had, and a line where those are others than the plan's.

    The key of an axis tells its degrees. An axis that joins all ranks has the world size as its key, so a mesh of one
    axis at every world size is not told from another one. Where no degrees give the communicators, the plan's are kept
    and that is said. Of settings side by side, the files have the communicators of all, and nothing is said.
    """
    parallel = plan.spec.parallel
    if plan.own_loop or not parallel.sharded or plan.spec.vary.parallel or plan.variant is not None:
        return plan, ()
    seen = {_recorded(file) for file in files if file.rank == 0 and file.groups}
    if _fits(parallel, seen):
        return plan, ()
    said = f"plan.json says {_degrees(parallel)}, and the rank files have other communicators"
    most = max((n for sizes, _ in seen for n in sizes), default=1)
    for one in _others(parallel, plan.spec.topology.ranks_per_host, most):
        if _fits(one, seen):
            spec = dataclasses.replace(plan.spec, parallel=one)
            return dataclasses.replace(plan, spec=spec), (f"{said}: those of {_degrees(one)}, which is used",)
    return plan, (f"{said}; samples/s, efficiency and the loss by cause may be wrong",)


def _recorded(file: RankFile) -> Seen:
    """The world sizes of a rank's launch, and the keys of its axes' communicators.

    A world size is believed only with its ranks, so that a number that was changed asks for no mesh of a billion.
    """
    sizes = frozenset(key for key, ranks in file.groups.items() if key == len(ranks) > 1)
    return sizes, frozenset(filter(is_axis, file.groups))


def _fits(parallel: Parallel, seen: Iterable[Seen]) -> bool:
    """Whether the meshes of each launch's world sizes have the communicators that it had."""
    try:
        return all(
            {key for n in sizes for key in parallel.mesh(n).keys().values() if is_axis(key)} == axes
            for sizes, axes in seen
        )
    except MeshError:
        return False


def _others(parallel: Parallel, ranks_per_host: int, most: int) -> Iterator[Parallel]:
    """The strategy with all degrees that it may have on `most` ranks: its usual ones, then with one for the rest."""
    yield dataclasses.replace(Parallel.preset(parallel.name, ranks_per_host), sequence=parallel.sequence)
    for rest in (True, False):
        for degrees in product((REST, *divisors(most)), repeat=3):
            if degrees.count(REST) == rest:
                replicate, shard, tensor = degrees
                yield dataclasses.replace(parallel, replicate=replicate, shard=shard, tensor=tensor)


def _degrees(parallel: Parallel) -> str:
    degrees = (f"{name} {getattr(parallel, name)}" for name in AXES)
    return f"parallel={parallel.name} with {', '.join(degrees)}"


def as_recorded(plan: Plan, tables: Tables) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the facts of its blocks and the degrees of its communicators, and a line for each that differs.

    Errors as `of_blocks`.
    """
    plan, said = of_blocks(plan, tables.blocks)
    plan, more = as_communicated(plan, tables.ranks)
    return plan, (*said, *more)


def of_blocks(plan: Plan, blocks: Frame) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the world sizes, batches and micro-steps of its blocks, and a line for each that differs.

    An own loop's plan comes from its records, and a run by cases has its batches in its blocks alone. InputError where
    the blocks are those of cases and the plan asks for none: which cases they were stands in the plan alone.
    """
    arms = set() if plan.own_loop else set(in_memory(blocks.select("arm").unique())["arm"])
    if not arms:
        return plan, ()
    if not arms.isdisjoint(ARMS):
        if not plan.spec.by_case:
            raise InputError(
                "plan.json asks for a scaling run, and the rank files hold a table of cases; give its task, batches, "
                "batch_max and vary the values that they had"
            )
        return plan, ()
    said = []
    if plan.spec.by_case:
        said.append(
            "plan.json asks for a table of cases, and the blocks are those of a scaling run, which is reported"
        )
        spec = dataclasses.replace(
            plan.spec, task="train", batches=(), batch_max=False, vary=Vary(parallel=plan.spec.vary.parallel)
        )
        plan = dataclasses.replace(plan, spec=spec)
    plain = blocks.filter((pl.col("arm") == PLAIN) & (pl.col("batch") > 0) & (pl.col("accumulation") > 0))
    found = in_memory(plain.group_by("world_size").agg(pl.col("batch", "accumulation").mode().sort().first()))
    batches = {n: batch for n, batch, _ in found.sort("world_size").iter_rows()}
    if not batches:
        return plan, tuple(said)
    known = {t.world_size: t for t in plan.trials}
    trials = []
    for n in sorted({*known, *batches}):
        trial = known.get(n)
        if trial is None:
            trial = Trial(world_size=n, hosts=plan.spec.topology.hosts_of(n), batch=batches[n])
            said.append(f"plan.json has no world size {n}, which the records have; it is reported")
        batch = batches.get(n, trial.batch)
        if batch != trial.batch:
            said.append(
                f"plan.json says {trial.batch} samples a rank and step at world size {n}, the blocks say {batch}, "
                "which is used"
            )
        trials.append(dataclasses.replace(trial, batch=batch))
    spec, more = _spec(plan.spec, batches, found["accumulation"].mode().sort()[0])
    if not said and not more:
        return plan, ()
    spec = dataclasses.replace(spec, world_sizes=tuple(t.world_size for t in trials))
    return dataclasses.replace(plan, spec=spec, trials=tuple(trials)), (*said, *more)


def check_meshes(plan: Plan, where: object) -> None:
    """InputError where the degrees of plan.json do not fit a world size that was measured; `where`: the file."""
    for strategy in plan.spec.strategies:
        for trial in plan.trials:
            try:
                strategy.parallel.mesh(trial.world_size)
            except MeshError as error:
                raise InputError(f"{where}: parallel={strategy.parallel.name}: {error}") from error


def _spec(spec: Spec, batches: Mapping[int, int], accumulation: int) -> tuple[Spec, list[str]]:
    """The settings that the blocks contradict: how the batch grows with the ranks, and the micro-steps."""
    said = []
    mode = _mode(batches, spec.mode)
    if mode != spec.mode:
        said.append(f"plan.json says {spec.mode} scaling, the blocks' batches are those of {mode} scaling")
    if accumulation != spec.accumulation_steps:
        said.append(
            f"plan.json says {spec.accumulation_steps} micro-steps a step, the blocks say {accumulation}, which is used"
        )
    changed = dataclasses.replace(spec, mode=mode, accumulation_steps=accumulation)
    if any(changed.batch_at(n) != batch for n, batch in batches.items()):
        strong = mode == "strong"
        changed = dataclasses.replace(
            changed,
            batch_per_rank=spec.batch_per_rank if strong else max(batches.values()),
            global_batch=max(n * batch for n, batch in batches.items()) if strong else spec.global_batch,
        )
    return changed, said


def _mode(batches: Mapping[int, int], said: str) -> str:
    """weak where every world size has the same batch a rank, strong where all ranks together have; else as said."""
    if len(batches) < 2:
        return said
    if len(set(batches.values())) == 1:
        return "weak"
    whole = max(n * batch for n, batch in batches.items())
    return "strong" if all(whole // n == batch for n, batch in batches.items()) else said
