"""Leave out blocks that cannot be, and say which are missing. Pure, but for `read_checked`.

What is missing on one rank, or what time does not allow, goes on all ranks. What a record may say is in records.rules.
A block is the unit, because its steps are averaged before anything else is done with them.

The plan as the records show it: their batches, world sizes and degrees win over plan.json, which is said.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import product

import polars as pl

from scaling.errors import InputError
from scaling.records import rules
from scaling.records.collect import Look, collect
from scaling.records.frames import Frame, in_memory
from scaling.records.paths import RunFolder
from scaling.records.rank_file import Gap, RankFile
from scaling.records.tables import Tables, without_blocks
from scaling.settings.cases import ARMS
from scaling.settings.parallel import AXES, REST, MeshError, Parallel, divisors, is_axis
from scaling.settings.plan import Plan, Trial
from scaling.settings.run import Spec, Vary
from scaling.settings.schedule import BARE_ONE, PAIRS, PLAIN

NAMED = 5
"""Blocks that a line names; it counts the others."""
PLACE = ["launch", "block"]
KIND = ["launch", "world_size", "arm", "detailed", "batch", "case"]
"""Blocks of a kind occur equally often in every round of a launch, or in every round that has details."""


def missing_blocks(tables: Tables) -> tuple[pl.DataFrame, list[Gap], int]:
    """(launch, block) of blocks that some rank lacks; what is said of missing ones; how many are missing.

    Ranks that left no file at all are said elsewhere, and the others' blocks are then kept. The last blocks of a launch
    that was cut off are not on all ranks; they go, and nothing is said of them here.
    """
    files_of: dict[int, list[RankFile]] = {}
    for file in tables.ranks:
        files_of.setdefault(file.launch, []).append(file)
    ended = [
        launch
        for launch, files in files_of.items()
        if all(file.ended for file in files) and len(files) >= max(file.world for file in files)
    ]
    whole = pl.col("launch").is_in(sorted(ended))
    ragged = _ragged(tables)
    gaps, missing = _rank_gaps(ragged.filter(whole))
    read = in_memory(tables.blocks.group_by("launch", "rank").agg(len=pl.len()))
    counts = {(launch, rank): count for launch, rank, count in read.iter_rows()}
    for file in tables.ranks:
        lacking = (file.blocks or 0) - counts.get((file.launch, file.rank), 0) - len(file.damaged)
        if lacking > 0 and not any((gap.launch, gap.rank) == (file.launch, file.rank) for gap in gaps):
            what = f"lacks {_blocks(lacking)} of the {file.blocks} that it wrote"
            gaps.append(Gap(launch=file.launch, rank=file.rank, what=what))
            missing = max(missing, lacking)
    if not gaps:
        # A block that withheld its details is there, without them.
        asked = pl.col("detailed") | (pl.col("withheld").fill_null("") != "")
        gaps, missing = _round_gaps(
            in_memory(
                tables.blocks.filter(whole).with_columns(asked).select(*KIND, "round", "block").unique()
            ),
            {launch: files[0].detailed for launch, files in files_of.items() if files[0].detailed},
        )
    damaged = sum(len(file.damaged) for file in tables.ranks)
    return ragged.select(PLACE).unique(), gaps, max(missing, damaged)


def _ragged(tables: Tables) -> pl.DataFrame:
    """(launch, block, world_size, arm, rank) for each rank that lacks a block which another rank of its group has."""
    kind = ["launch", "world_size", "arm"]
    of_several = tables.blocks.filter(~pl.col("arm").is_in([BARE_ONE, PAIRS]))
    shared = in_memory(of_several.select(*kind, "block", "rank"))
    files = pl.DataFrame(
        [(file.launch, file.rank) for file in tables.ranks],
        schema={"launch": pl.Int64, "rank": pl.Int64},
        orient="row",
    )
    kinds = shared.select(kind).unique()
    first = kinds.join(files, on="launch").filter(pl.col("rank") < pl.col("world_size"))
    members = shared.select(*kind, "rank").unique()
    members = pl.concat([members, first.select(*kind, "rank")]).unique()
    everybody = members.group_by(kind).len("all")
    present = shared.group_by(*kind, "block").agg(present=pl.col("rank").n_unique())
    ragged = present.join(everybody, on=kind).filter(pl.col("present") < pl.col("all"))
    wanted = ragged.select(*kind, "block").join(members, on=kind)  # of the few blocks that are ragged
    absent = wanted.join(shared, on=["launch", "block", "rank"], how="anti")
    return absent.select(*kind, "rank", "block").sort("launch", "rank", "block")


def _rank_gaps(ragged: pl.DataFrame) -> tuple[list[Gap], int]:
    """A line for each rank that lacks blocks."""
    gaps = []
    for launch, rank, blocks, arms in (
        ragged.group_by("launch", "rank", maintain_order=True).agg("block", "arm").iter_rows()
    ):
        named = ", ".join(f"{b} ({arm})" for b, arm in list(zip(blocks, arms, strict=True))[:NAMED])
        more = f" and {len(blocks) - NAMED} more" if len(blocks) > NAMED else ""
        what = f"lacks {_blocks(len(blocks))} that other ranks have: {named}{more}; left out on all ranks"
        gaps.append(Gap(launch=launch, rank=rank, what=what))
    return gaps, ragged.select(PLACE).unique().height


def _round_gaps(blocks: pl.DataFrame, detailed: Mapping[int, Collection[int]]) -> tuple[list[Gap], int]:
    """A line for each launch in which some round has fewer blocks of a kind than the others, or is not there.

    The last round may end before its last block, where the time is over. `detailed`: the rounds with details of
    launches in which some have none; a kind that no other round has is then due in these alone.
    """
    whole = blocks.filter(pl.col("round") < pl.col("round").max().over("launch", "world_size"))
    each = whole.group_by(*KIND, "round").agg(count=pl.col("block").n_unique())
    sampled = pl.DataFrame(
        [(launch, number) for launch, numbers in detailed.items() for number in numbers],
        schema={"launch": pl.Int64, "round": pl.Int64},
        orient="row",
    )
    each = each.join(sampled.with_columns(sampled=True), on=["launch", "round"], how="left")
    kinds = each.group_by(KIND).agg(
        usual=pl.col("count").max(),
        there=pl.col("count").sum(),
        rounds=pl.col("round").max() + 1,
        everywhere=pl.col("sampled").is_null().any(),
    )
    most = pl.col("rounds").max().over("launch", "world_size")
    kinds = kinds.with_columns(due=most)
    of_sample = kinds.filter(~pl.col("everywhere")).join(sampled, on="launch")
    due = of_sample.filter(pl.col("round") < pl.col("due")).group_by(KIND).agg(of_sample=pl.len())
    kinds = kinds.join(due, on=KIND, how="left").with_columns(due=pl.coalesce("of_sample", "due"))
    lacking = kinds.with_columns(lacking=pl.col("usual") * pl.col("due") - pl.col("there")).filter(
        pl.col("lacking") > 0
    )
    gaps = []
    for launch, part in sorted(lacking.partition_by("launch", as_dict=True).items()):
        rows = part.sort("world_size", "arm").select("lacking", "arm", "world_size").head(NAMED).iter_rows()
        named = ", ".join(f"{count} of {arm} at world size {n}" for count, arm, n in rows)
        what = f"lacks {_blocks(int(part['lacking'].sum()))} that its other rounds have: {named}"
        gaps.append(Gap(launch=int(launch[0]), what=what))
    return gaps, int(lacking["lacking"].sum())


def _blocks(count: int) -> str:
    return f"{count} block{'s' * (count != 1)}"


LINES = 12
"""Lines for each launch."""


def read_checked(folder: RunFolder, plan: Plan) -> Tables:
    """A run's rank files as tables, without the blocks that fail a rule; rows are looked at while others are read.

    A gap says which blocks they are, on which rank, and why.
    """
    broken: list[pl.DataFrame] = []
    tables = collect(folder, plan, Look(partial(rules.broken_rows, plan), broken.append))
    failed = pl.concat([*broken, rules.overlapping(plan, tables.blocks)]).unique()
    failed = failed.sort("launch", "rank", "block", "why")
    blocks, gaps, missing = failed.select(PLACE).unique(), list[Gap](), 0
    left_out = blocks.height
    if not plan.kind.followed:  # a rank of an own loop gives a block up when the loop does something else
        ragged, gaps, missing = missing_blocks(tables)
        blocks = pl.concat([blocks, ragged]).unique()
    kept = without_blocks(tables, blocks) if blocks.height else tables
    gaps = [*tables.gaps, *_rule_gaps(failed), *gaps]
    return dataclasses.replace(kept, gaps=tuple(gaps), dropped_blocks=left_out + missing)


def _rule_gaps(failed: pl.DataFrame) -> list[Gap]:
    """A line for each launch, rank and reason, with the first blocks' numbers and arms."""
    gaps = []
    for launch, part in sorted(failed.partition_by("launch", as_dict=True).items()):
        groups = (
            part.unique(["rank", "block", "why"])
            .sort("block")
            .group_by("rank", "why", maintain_order=True)
            .agg("block", "arm")
            .sort("rank", "why")
        )
        for rank, why, blocks, arms in groups.head(LINES).iter_rows():
            named = ", ".join(f"{b} ({arm})" for b, arm in list(zip(blocks, arms, strict=True))[:NAMED])
            more = f" and {len(blocks) - NAMED} more" if len(blocks) > NAMED else ""
            plural = "blocks" if len(blocks) > 1 else "block"
            what = f"says in {plural} {named}{more} what cannot be: {why}; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), rank=rank, what=what))
        if groups.height > LINES:
            more = f"says more in {groups.height - LINES} other places that cannot be; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), what=more))
    return gaps


Seen = tuple[frozenset[int], frozenset[int]]


def as_communicated(plan: Plan, files: Iterable[RankFile]) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the degrees whose communicators rank 0 had, and a line where those are others than the plan's.

    The key of an axis tells its degrees. An axis that joins all ranks has the world size as its key, so a mesh of one
    axis at every world size is not told from another one. Where no degrees give the communicators, the plan's are kept
    and that is said. Of settings side by side, the files have the communicators of all, and nothing is said.
    """
    parallel = plan.spec.parallel
    if plan.kind.followed or not parallel.sharded or plan.spec.vary.parallel or plan.variant is not None:
        return plan, ()
    seen = {_recorded(file) for file in files if file.rank == 0 and file.groups}
    if _fits(parallel, seen):
        return plan, ()
    claim = f"plan.json says {_degrees(parallel)}, and the rank files have other communicators"
    most = max((n for sizes, _ in seen for n in sizes), default=1)
    for other in _others(parallel, plan.spec.topology.ranks_per_host, most):
        if _fits(other, seen):
            spec = dataclasses.replace(plan.spec, parallel=other)
            return dataclasses.replace(plan, spec=spec), (
                f"{claim}: those of {_degrees(other)}, which is used",
            )
    return plan, (f"{claim}; samples/s, efficiency and the loss by cause may be wrong",)


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

    InputError where the blocks are those of cases and the plan asks for none.
    """
    plan, notes = plan_of_blocks(plan, tables.blocks)
    plan, more = as_communicated(plan, tables.ranks)
    return plan, (*notes, *more)


def plan_of_blocks(plan: Plan, blocks: Frame) -> tuple[Plan, tuple[str, ...]]:
    """The plan with the world sizes, batches and micro-steps of its blocks, and a line for each that differs.

    An own loop's plan comes from its records, and a run by cases has its batches in its blocks alone. InputError where
    the blocks are those of cases and the plan asks for none: which cases they were stands in the plan alone.
    """
    arms = set() if plan.kind.followed else set(in_memory(blocks.select("arm").unique())["arm"])
    if not arms:
        return plan, ()
    if not arms.isdisjoint(ARMS):
        if not plan.spec.kind.by_cases:
            raise InputError(
                "plan.json asks for a scaling run, and the rank files hold a table of cases; give its task, batches, "
                "batch_max and vary the values that they had"
            )
        return plan, ()
    notes = []
    if plan.spec.kind.by_cases:
        notes.append(
            "plan.json asks for a table of cases, and the blocks are those of a scaling run, which is reported"
        )
        spec = dataclasses.replace(
            plan.spec, task="train", batches=(), batch_max=False, vary=Vary(parallel=plan.spec.vary.parallel)
        )
        plan = dataclasses.replace(plan, spec=spec)
    plain = blocks.filter((pl.col("arm") == PLAIN) & (pl.col("batch") > 0) & (pl.col("accumulation") > 0))
    modes = in_memory(plain.group_by("world_size").agg(pl.col("batch", "accumulation").mode().sort().first()))
    batches = {n: batch for n, batch, _ in modes.sort("world_size").iter_rows()}
    if not batches:
        return plan, tuple(notes)
    planned = {t.world_size: t for t in plan.trials}
    trials = []
    for n in sorted({*planned, *batches}):
        trial = planned.get(n)
        if trial is None:
            trial = Trial(world_size=n, hosts=plan.spec.topology.hosts_of(n), batch=batches[n])
            notes.append(f"plan.json has no world size {n}, which the records have; it is reported")
        batch = batches.get(n, trial.batch)
        if batch != trial.batch:
            notes.append(
                f"plan.json says {trial.batch} samples per rank and step at world size {n}, the blocks say {batch}, "
                "which is used"
            )
        trials.append(dataclasses.replace(trial, batch=batch))
    spec, more = _spec(plan.spec, batches, modes["accumulation"].mode().sort()[0])
    if not notes and not more:
        return plan, ()
    spec = dataclasses.replace(spec, world_sizes=tuple(t.world_size for t in trials))
    return dataclasses.replace(plan, spec=spec, trials=tuple(trials)), (*notes, *more)


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
    notes = []
    mode = _mode(batches, spec.mode)
    if mode != spec.mode:
        notes.append(f"plan.json says {spec.mode} scaling, the blocks' batches are those of {mode} scaling")
    if accumulation != spec.accumulation_steps:
        notes.append(
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
    return changed, notes


def _mode(batches: Mapping[int, int], planned: str) -> str:
    """weak where every world size has the same batch a rank, strong where all ranks together have; else `planned`."""
    if len(batches) < 2:
        return planned
    if len(set(batches.values())) == 1:
        return "weak"
    whole = max(n * batch for n, batch in batches.items())
    return "strong" if all(whole // n == batch for n, batch in batches.items()) else planned
