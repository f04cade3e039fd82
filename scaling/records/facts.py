"""The plan as the blocks recorded it: what they say of themselves wins over plan.json, and a difference is said."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import polars as pl

from scaling.errors import InputError
from scaling.records.frames import Frame, in_memory
from scaling.records.meshes import as_communicated
from scaling.records.tables import Tables
from scaling.spec.cases import ARMS
from scaling.spec.parallel import MeshError
from scaling.spec.plan import Plan, Trial
from scaling.spec.run import Spec, Vary
from scaling.spec.schedule import PLAIN


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
