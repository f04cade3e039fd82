"""Leave out blocks that cannot be, and say which are missing. Pure, but for `read_checked`.

What is missing on one rank, or what time does not allow, goes on all ranks. A block is the unit, because its steps are
averaged before anything else is done with them.

Every record obeys the rules, because time and the program allow nothing else. Checksums find what changed after it was
written. Rules find what was measured wrongly or mixed up: the order of stamps, phases within their step, counts, and
ranks that worked together but never at the same time. A rank's own stamps come from one clock that only goes forward,
so they are compared almost exactly. Stamps of two ranks are compared within the error of their clocks. No rule is about
how long something may take: a slow step is a result.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import polars as pl

from scaling.errors import InputError
from scaling.reading import INT_MAX
from scaling.records.collect import collect
from scaling.records.decode import Gap, RankFile
from scaling.records.paths import RunFolder
from scaling.records.tables import Frame, Tables, by_runs, in_memory, in_order, without_blocks
from scaling.settings.cases import LATENCY, THROUGHPUT, TRAINING
from scaling.settings.parallel import OWN, MeshError
from scaling.settings.plan import Plan
from scaling.settings.run import KINDS
from scaling.settings.schedule import (
    BARE_ONE,
    FABRIC,
    PAIRS,
    PHASES,
    PLAIN,
    PROBE,
    REPLAY,
    STEP_ARMS,
    VARIANT,
)
from scaling.units import count, few

SLACK_NS = 50_000
"""Allowed on one rank's clock: rounding of a corrected clock, and a callback that is late."""
DEVICE_SLACK_NS = 500_000
"""Allowed where stamps are a device's events, which are converted to host time with an error."""
ACROSS_NS = 500_000
"""Allowed between ranks, beside twice the bound of their clocks."""
ARMS = (*STEP_ARMS, REPLAY, FABRIC, PAIRS, LATENCY, THROUGHPUT, TRAINING)
TOGETHER = (PLAIN, PROBE, VARIANT, TRAINING)
"""Arms in which every step synchronises the ranks of its group."""
FACTS = ["round", "world_size", "arm", "detailed", "solo_rank", "batch", "lead_in", "steps", "case"]
"""What all ranks record alike of a block."""
PLACE, BLOCK, STEP = ["launch", "block"], ["launch", "block", "rank"], ["launch", "block", "rank", "step"]
ALL_REDUCE = KINDS.index("all_reduce")
SCHEMA = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64, "arm": pl.String, "why": pl.String}

Broken = Iterator[pl.DataFrame]
"""Rows with the columns of SCHEMA, among others."""


def broken_rows(plan: Plan, part: Tables) -> pl.DataFrame:
    """(launch, rank, block, arm, why) for each rule that a block breaks on a rank.

    `part`: all rows of some whole blocks.
    """
    slack = _slack(plan)
    apart_ns = 2 * max((file.clock_bound_ns or 0 for file in part.ranks), default=0) + ACROSS_NS
    blocks, steps = in_memory(part.blocks), in_memory(part.steps)
    synchronised = pl.col("arm").is_in(TOGETHER) & (pl.col("world_size") > 1)
    # Ranks of an own loop may send to some others alone, or seldom.
    synchronised &= pl.lit(plan.spec.parallel.name != OWN)
    joint = (
        (pl.col("kind") == ALL_REDUCE)
        & (pl.col("world_size") > 1)
        & (pl.col("group") == pl.col("world_size"))  # an axis of a mesh joins other ranks
        & pl.col("arm").is_in([PROBE, REPLAY, FABRIC])
    )
    broken = [
        *_block_rules(blocks),
        *_step_rules(blocks, steps, plan, slack),
        *_apart_in_time(steps.filter(synchronised), "begin_ns", "end_ns", pl.lit(-1), apart_ns),
        *_unlike(blocks),
    ]
    for rows in (in_memory(part.buckets), in_memory(part.fabric)):
        if rows.height:
            broken += _collective_rules(steps, rows, slack)
            broken += _apart_in_time(rows.filter(joint), "launch_ns", "done_ns", pl.col("seq"), apart_ns)
    return _named(broken)


def overlapping(plan: Plan, blocks: Frame) -> pl.DataFrame:
    """Blocks that overlap with others of their rank, as `broken_rows` has them; `blocks`: of the whole run."""
    slack, place = _slack(plan), ["launch", "rank"]
    follows = pl.col("begin_ns") < pl.col("end_ns").shift(1).over(place) - slack
    leads = pl.col("end_ns") > pl.col("begin_ns").shift(-1).over(place) + slack
    ordered = in_memory(blocks.select(*BLOCK, "arm", "begin_ns", "end_ns")).sort(*place, "begin_ns", "block")
    why = "it overlaps with the rank's next block or the one before"
    return _named(_breaking(ordered, {why: follows | leads}))


def _block_rules(blocks: pl.DataFrame) -> Broken:
    return _breaking(
        blocks,
        {
            "it ends before it begins": pl.col("end_ns") <= pl.col("begin_ns"),
            "it has no time": pl.col("host_begin_ns") <= 0,
            "its arm is not known": ~pl.col("arm").is_in(ARMS),
            "a count in it is negative, or it has no step": (pl.min_horizontal("lead_in", "batch") < 0)
            | (pl.min_horizontal("steps", "accumulation", "world_size") < 1),
        },
    )


def _step_rules(blocks: pl.DataFrame, steps: pl.DataFrame, plan: Plan, slack: int) -> Broken:
    steps = in_order(steps, STEP)
    by_block = by_runs(
        steps,
        BLOCK,
        rows=pl.len(),
        different=pl.col("step").n_unique(),
        last=pl.col("step").max(),
        first=pl.col("step").min(),
        first_ns=pl.col("begin_ns").min(),
        last_ns=pl.col("end_ns").max(),
    )
    whole = blocks.join(by_block, on=BLOCK, how="left").with_columns(pl.col("rows").fill_null(0))
    at_once = (pl.col("arm") == THROUGHPUT) & (pl.col("rows") == 1)
    rules = {
        "not all of its steps are there": ((pl.col("rows") != pl.col("steps")) & ~at_once)
        | (pl.col("different") != pl.col("rows"))
        | (pl.col("first") != 0)
        | (pl.col("last") != pl.col("rows") - 1)
    }
    if not plan.kind.followed:  # there the device may still run when the block's own times are taken
        rules["its steps lie outside of it"] = (pl.col("first_ns") < pl.col("begin_ns") - slack) | (
            pl.col("last_ns") > pl.col("end_ns") + slack
        )
    yield from _breaking(whole, rules)
    follows = pl.all_horizontal(pl.col(name) == pl.col(name).shift(1) for name in BLOCK)
    yield from _breaking(steps, _phases(plan, slack, follows))


def _phases(plan: Plan, slack: int, follows: pl.Expr) -> dict[str, pl.Expr]:
    """The order of a step's stamps, and its phases within it. `follows`: whether the row before is the step before."""
    length, wait = pl.col("end_ns") - pl.col("begin_ns"), pl.col("sync_end_ns") - pl.col("compute_end_ns")
    phases = ("input_ns", "forward_ns", "backward_ns", "optimizer_ns")
    elsewhere = ("input_wait_ns", "optimizer_wait_ns", "host_wait_ns")
    waits = ("earlier_wait_ns", "buffer_wait_ns", "forward_wait_ns", "backward_wait_ns", *elsewhere)
    rest = length - pl.sum_horizontal(phases)
    stamped = pl.col("compute_end_ns").is_not_null()
    computed = pl.col("begin_ns") + pl.sum_horizontal(phases[:-1])
    buffered = pl.col("buffer_end_ns") - pl.col("buffer_begin_ns")
    rules = {
        "a step ends before it begins": length <= 0,
        "a step begins before the one before it ends": follows
        & (pl.col("begin_ns") < pl.col("end_ns").shift(1) - slack),
        "a part of a step is negative": pl.min_horizontal(*phases, *waits) < -slack,
        "the parts of a step are longer than the step": stamped
        & (pl.sum_horizontal(phases) > length + slack),
        "backward's compute ends before the step begins, or after its communication": stamped
        & (
            (pl.col("compute_end_ns") < pl.col("begin_ns"))
            | (wait < -slack)
            | (pl.col("sync_end_ns") > pl.col("end_ns") + slack)
        ),
        "backward waits for longer than it lasts": stamped
        & (wait + pl.col("earlier_wait_ns") + pl.col("backward_wait_ns") > pl.col("backward_ns") + slack),
        "forward waits for longer than it lasts": stamped
        & (pl.col("buffer_wait_ns") + pl.col("forward_wait_ns") > pl.col("forward_ns") + slack),
        "input, optimizer or the rest of a step waits for longer than it lasts": stamped
        & (
            (pl.col("input_wait_ns") > pl.col("input_ns") + slack)
            | (pl.col("optimizer_wait_ns") > pl.col("optimizer_ns") + slack)
            | (pl.col("host_wait_ns") > rest + slack)
        ),
        "forward's buffers come before or after their step, or take longer than forward waits for them": stamped
        & (pl.col("buffer_wait_ns") > 0)
        & (
            ~buffered.is_between(0, pl.col("buffer_wait_ns") + slack)
            | (pl.col("buffer_begin_ns") < pl.col("begin_ns") - slack)
            | (pl.col("buffer_end_ns") > pl.col("sync_end_ns") + slack)
        ),
    }
    if not plan.kind.followed:  # an own loop may have its phases in another order
        rules["the phases of a step are not in order"] = stamped & (
            (computed > pl.col("sync_end_ns") + slack)
            | (pl.col("sync_end_ns") + pl.col("optimizer_ns") > pl.col("end_ns") + slack)
        )
    return rules


def _collective_rules(steps: pl.DataFrame, rows: pl.DataFrame, slack: int) -> Broken:
    timed = pl.col("arm").is_in([PROBE, REPLAY, FABRIC, PAIRS])
    done = pl.col("done_ns")
    yield from _breaking(
        rows,
        {
            "a collective was complete before it was launched or enqueued": (
                done < pl.col("launch_ns") - slack
            )
            | ((done > 0) & (pl.col("enqueue_ns") > done + slack)),
            "a collective has no time": timed & (pl.min_horizontal("launch_ns", "done_ns") <= 0),
            "a rank goes on before it began to wait": pl.col("resume_ns") < pl.col("wait_ns"),
            "a collective has no bytes, or is of no known kind, phase or unit": (
                pl.min_horizontal("bytes", "calls") < 1
            )
            | ~pl.col("kind").is_between(0, len(KINDS) - 1)
            | ~pl.col("phase").is_between(0, len(PHASES) - 1)
            | (pl.col("seq") < 0)
            | (pl.col("unit") < -1),
        },
    )
    seq, begun = pl.col("seq"), ("ready_ns", "launch_ns")
    stamped = (pl.when(pl.col(name) > 0).then(name).otherwise(INT_MAX) for name in begun)
    of_step = by_runs(
        rows,
        STEP,
        arm=pl.col("arm").first(),
        first=pl.min_horizontal(stamped).min(),
        last=pl.max_horizontal(*begun, "done_ns").max(),
        rows=pl.len(),
        different=seq.max() - seq.min() + 1,
    ).join(steps.select(*STEP, "begin_ns", "end_ns"), on=STEP, how="left")
    # A host may enqueue a collective while its device is in an earlier step.
    room = slack + (pl.col("end_ns") - pl.col("begin_ns")) // 20
    yield from _breaking(
        of_step,
        {
            "a collective lies outside of its step": (pl.col("first") < pl.col("begin_ns") - room)
            | (pl.col("last") > pl.col("end_ns") + room),
            "a collective of a step is missing or twice there": pl.col("different") != pl.col("rows"),
        },
    )


def _breaking(frame: pl.DataFrame, rules: dict[str, pl.Expr]) -> Broken:
    """Rows that break a rule, with the rule's words."""
    flags = frame.select(**{why: rule.fill_null(value=False) for why, rule in rules.items()})
    for why in rules:
        if flags[why].any():
            yield frame.filter(flags[why]).with_columns(why=pl.lit(why))


def _unlike(facts: pl.DataFrame) -> Broken:
    """Blocks of which a rank recorded other facts than most ranks; all ranks' where there is no majority."""
    differing = facts.filter(pl.struct(FACTS).n_unique().over(PLACE) > 1)
    most = differing.with_columns(count=pl.len().over(*PLACE, *FACTS), all=pl.len().over(PLACE))
    odd = most.filter(
        (pl.col("count") < pl.col("count").max().over(PLACE)) | (pl.col("count") * 2 <= pl.col("all"))
    )
    yield odd.with_columns(why=pl.lit("its facts are not those that the other ranks recorded of it"))


def _apart_in_time(rows: pl.DataFrame, begin: str, end: str, seq: pl.Expr, allowed_ns: int) -> Broken:
    """Rows of ranks that worked together and yet never at the same time: the rank farthest from the others."""
    place = ["launch", "block", "step", "seq", "group"]
    group = pl.col("rank") // pl.col("world_size")
    rows = rows.select(*STEP, "arm", begun=begin, ended=end, group=group, seq=seq)
    apart = (
        rows.group_by(place)
        .agg(begun=pl.col("begun").max(), ended=pl.col("ended").min())
        .filter(pl.col("begun") > pl.col("ended") + allowed_ns)
    )
    if apart.is_empty():
        return
    middle = (pl.col("begun") + pl.col("ended")) // 2
    off = (middle - middle.median().over(place)).abs()
    odd = rows.join(apart, on=place, how="semi").filter(off == off.max().over(place))
    yield odd.with_columns(why=pl.lit("it worked with other ranks and never at the same time as they"))


def _slack(plan: Plan) -> int:
    """Slack that stamps are allowed, ns."""
    return SLACK_NS if plan.spec.topology.device == "cpu" else DEVICE_SLACK_NS


def _named(rows: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """All rows with the columns of SCHEMA."""
    parts = (part.select(list(SCHEMA)).cast(SCHEMA) for part in rows if part.height)  # type: ignore[arg-type]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *parts])


NAMED = 5
"""Blocks that a line names; it counts the others."""
LINES = 12
"""Lines for each launch."""


def missing_blocks(tables: Tables) -> tuple[pl.DataFrame, list[Gap], int]:
    """(launch, block) of blocks that some rank lacks; what is said of missing ones; how many are missing.

    Ranks that left no file at all are said elsewhere, and the others' blocks are then kept. The last blocks of a launch
    that was cut off are not on all ranks; they go, and nothing is said of them here.
    """
    files_of: dict[int, list[RankFile]] = defaultdict(list)
    for file in tables.ranks:
        files_of[file.launch].append(file)
    ended = [
        launch
        for launch, files in files_of.items()
        if all(file.ended for file in files) and len(files) >= max(file.world for file in files)
    ]
    whole = pl.col("launch").is_in(sorted(ended))
    ragged = _ragged(tables)
    gaps, missing = _rank_gaps(ragged.filter(whole))
    read = in_memory(tables.blocks.group_by("launch", "rank").agg(len=pl.len()))
    counts = {(launch, rank): blocks for launch, rank, blocks in read.iter_rows()}
    for file in tables.ranks:
        lacking = (file.blocks or 0) - counts.get((file.launch, file.rank), 0) - len(file.damaged)
        if lacking > 0 and not any((gap.launch, gap.rank) == (file.launch, file.rank) for gap in gaps):
            what = f"lacks {count(lacking, 'block')} of the {file.blocks} that it wrote"
            gaps.append(Gap(launch=file.launch, rank=file.rank, what=what))
            missing = max(missing, lacking)
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
    members = pl.concat([ranks.select(*kind, "rank").unique() for ranks in (shared, first)]).unique()
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
        lacking = f"{count(len(blocks), 'block')} that other ranks have: {_first(blocks, arms)}"
        gaps.append(Gap(launch=launch, rank=rank, what=f"lacks {lacking}; left out on all ranks"))
    return gaps, ragged.select(PLACE).unique().height


def _first(blocks: Sequence[int], arms: Sequence[str]) -> str:
    """The first blocks with their arms, and how many others."""
    return few([f"{block} ({arm})" for block, arm in zip(blocks, arms, strict=True)], NAMED)


def read_checked(folder: RunFolder, plan: Plan) -> Tables:
    """A run's rank files as tables, without the blocks that fail a rule; rows are looked at while others are read.

    A gap says which blocks they are, on which rank, and why.
    """
    tables, broken = collect(folder, plan, partial(broken_rows, plan))
    failed = pl.concat([*broken, overlapping(plan, tables.blocks)]).unique()
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
            plural = "blocks" if len(blocks) > 1 else "block"
            what = f"says in {plural} {_first(blocks, arms)} what cannot be: {why}; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), rank=rank, what=what))
        if groups.height > LINES:
            more = f"says more in {groups.height - LINES} other places that cannot be; left out on all ranks"
            gaps.append(Gap(launch=int(launch[0]), what=more))
    return gaps


def check_meshes(plan: Plan, where: object) -> None:
    """InputError where the degrees of plan.json do not fit a world size that was measured; `where`: the file."""
    for strategy in plan.spec.strategies:
        for trial in plan.trials:
            try:
                strategy.parallel.mesh(trial.world_size)
            except MeshError as error:
                raise InputError(f"{where}: parallel={strategy.parallel.name}: {error}") from error
