"""Rules that every record obeys because time and the program allow nothing else. Pure, on whole tables.

A rank's own stamps come from one clock that only goes forward, so they are compared almost exactly. Stamps of two ranks
are compared within the error of their clocks. None of the rules is about how long something may take: a slow step is a
result, not a defect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import polars as pl

from scaling.records.spill import in_memory
from scaling.records.tables import Tables
from scaling.spec.cases import LATENCY, THROUGHPUT, TRAINING
from scaling.spec.plan import Plan
from scaling.spec.run import COLLECTIVES, KINDS
from scaling.spec.schedule import (
    BARE_ONE,
    DDP_SOLO,
    FABRIC,
    PAIRS,
    PHASES,
    PLAIN,
    PROBE,
    REPLAY,
    STEP_ARMS,
    VARIANT,
)

SLACK_NS = 50_000
"""Allowed on one rank's clock: rounding of a corrected clock, and a callback that is late."""
DEVICE_SLACK_NS = 500_000
"""The same where stamps are a device's events, which are converted to host time with an error."""
ACROSS_NS = 500_000
"""Allowed between ranks, beside twice the bound of their clocks."""
WAITED = 1.1
"""A thread's CPU time or waiting over the wall time of its block: the kernel counts both in ticks."""
TICK_NS = 50_000_000

ARMS = (*STEP_ARMS, REPLAY, FABRIC, PAIRS, LATENCY, THROUGHPUT, TRAINING)
TOGETHER = (PLAIN, PROBE, VARIANT, TRAINING)
"""Arms in which every step synchronises the ranks of its group."""
BLOCK, STEP = ["launch", "rank", "block"], ["launch", "rank", "block", "step"]
SCHEMA = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64, "arm": pl.String, "why": pl.String}

ALL_REDUCE = COLLECTIVES.index("all_reduce")


def found(tables: Tables, plan: Plan) -> pl.DataFrame:
    """(launch, rank, block, arm, why) for each rule that a block breaks on a rank."""
    rules = Rules(plan=plan)
    for part in tables.by_part():
        rules.note(rules.at(part))
    return rules.found(tables.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found in some blocks."""

    broken: list[pl.DataFrame] = field(default_factory=list)
    traffic: list[pl.DataFrame] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a plan's records, and what was found in the rows that were looked at (records.tables.Look)."""

    plan: Plan
    seen: Seen = field(default_factory=Seen)

    @property
    def at(self) -> Callable[[Tables], Seen]:
        """Looks at some blocks of a launch."""
        return partial(_look, self.plan)

    def note(self, seen: Seen) -> None:
        """Keep what was found in some blocks."""
        self.seen.broken.extend(seen.broken)
        self.seen.traffic.extend(seen.traffic)

    def found(self, blocks: pl.DataFrame) -> pl.DataFrame:
        """As `found`, once all rows were looked at. `blocks`: of the whole run."""
        broken = [pl.DataFrame(schema=SCHEMA), *self.seen.broken, *_named(_blocks(blocks, _slack(self.plan)))]
        if self.seen.traffic and not self.plan.own_loop:
            broken += _named(_other_traffic(pl.concat(self.seen.traffic), blocks))
        return pl.concat(broken).unique().sort("launch", "rank", "block", "why")


def _look(plan: Plan, part: Tables) -> Seen:
    """`part`: whole blocks with all their rows."""
    steps, slack, seen = in_memory(part.steps), _slack(plan), Seen()
    seen.broken.extend(_named(_steps(part, steps, plan, slack)))
    for rows in (in_memory(part.buckets), in_memory(part.fabric)):
        if rows.height:
            seen.broken.extend(_named(_collectives(part, steps, rows, slack)))
            seen.traffic.append(_traffic(rows))
    return seen


def _slack(plan: Plan) -> int:
    """Of stamps, ns."""
    return SLACK_NS if plan.spec.topology.device == "cpu" else DEVICE_SLACK_NS


def _named(rules: Iterator[pl.DataFrame]) -> list[pl.DataFrame]:
    return [part.select(list(SCHEMA)).cast(SCHEMA) for part in rules if part.height]  # type: ignore[arg-type]


def _broken(frame: pl.DataFrame, rules: dict[str, pl.Expr]) -> Iterator[pl.DataFrame]:
    """Rows that break a rule, with the rule's words."""
    flags = frame.select(
        *(rule.fill_null(value=False).alias(str(k)) for k, rule in enumerate(rules.values()))
    )
    for k, why in enumerate(rules):
        if flags[str(k)].any():
            yield frame.filter(flags[str(k)]).with_columns(why=pl.lit(why))


def _blocks(blocks: pl.DataFrame, slack: int) -> Iterator[pl.DataFrame]:
    wall = pl.col("end_ns") - pl.col("begin_ns")
    rules = {
        "it ends before it begins": pl.col("end_ns") <= pl.col("begin_ns"),
        "it has no time": (pl.col("host_begin_ns") <= 0),
        "its arm is not known": ~pl.col("arm").is_in(ARMS),
        "a count in it is negative, or it has no step": (pl.col("steps") < 1)
        | (pl.col("lead_in") < 0)
        | (pl.col("batch") < 0)
        | (pl.col("accumulation") < 1)
        | (pl.col("world_size") < 1),
        "its thread ran or waited for longer than it lasted": (pl.col("cpu_ns") < 0)
        | (pl.col("delayed_ns") < -1)
        | ~pl.col("thread_cpu_ns").is_between(0, wall * WAITED + TICK_NS)
        | (pl.col("delayed_ns") > wall * WAITED + TICK_NS),
        "it was recorded twice": pl.struct(BLOCK).is_duplicated(),
    }
    yield from _broken(blocks, rules)
    in_order = blocks.sort("launch", "rank", "begin_ns", "block").with_columns(
        before=pl.col("end_ns").shift(1).over("launch", "rank"),
        after=pl.col("begin_ns").shift(-1).over("launch", "rank"),
    )
    overlapping = (pl.col("begin_ns") < pl.col("before") - slack) | (
        pl.col("end_ns") > pl.col("after") + slack
    )
    yield from _broken(in_order, {"it overlaps with the rank's next block or the one before": overlapping})
    yield from _unlike(
        blocks,
        ["launch", "block"],
        ["round", "world_size", "arm", "detailed", "solo_rank", "batch", "lead_in", "steps", "case"],
        "its facts are not those that the other ranks recorded of it",
    )
    # A block of one rank is compared with the launch's others of its arm: only one of a few batches occurs.
    rare = pl.len().over("launch", "world_size", "arm", "batch") == 1
    several = pl.col("round").n_unique().over("launch", "world_size", "arm") > 2
    alone = pl.col("arm") == BARE_ONE
    yield from _broken(blocks, {"no other block of its arm has its batch": rare & several & alone})


def _unlike(frame: pl.DataFrame, place: list[str], names: list[str], why: str) -> Iterator[pl.DataFrame]:
    """Rows whose values are not those of most rows of their place; all rows where there is no majority."""
    facts = pl.struct(names)
    differing = frame.filter(facts.n_unique().over(place) > 1)
    if differing.is_empty():
        return
    count = pl.len().over(*place, *names)
    most = differing.with_columns(count=count).with_columns(most=pl.col("count").max().over(place))
    whole = pl.len().over(place)
    odd = most.filter((pl.col("count") < pl.col("most")) | (pl.col("most") * 2 <= whole))
    yield odd.with_columns(why=pl.lit(why))


def _steps(tables: Tables, steps: pl.DataFrame, plan: Plan, slack: int) -> Iterator[pl.DataFrame]:
    steps = steps.sort(STEP)
    by_block = steps.group_by(BLOCK).agg(
        rows=pl.len(),
        different=pl.col("step").n_unique(),
        last=pl.col("step").max(),
        first=pl.col("step").min(),
        first_ns=pl.col("begin_ns").min(),
        last_ns=pl.col("end_ns").max(),
    )
    whole = tables.blocks.join(by_block, on=BLOCK, how="left").with_columns(pl.col("rows").fill_null(0))
    at_once = (pl.col("arm") == THROUGHPUT) & (pl.col("rows") == 1)
    rules = {
        "not all of its steps are there": ((pl.col("rows") != pl.col("steps")) & ~at_once)
        | (pl.col("different") != pl.col("rows"))
        | (pl.col("first") != 0)
        | (pl.col("last") != pl.col("rows") - 1)
    }
    if not plan.own_loop:  # there the device may still run when the block's own times are taken
        rules["its steps lie outside of it"] = (pl.col("first_ns") < pl.col("begin_ns") - slack) | (
            pl.col("last_ns") > pl.col("end_ns") + slack
        )
    yield from _broken(whole, rules)
    length, wait = pl.col("end_ns") - pl.col("begin_ns"), pl.col("sync_end_ns") - pl.col("compute_end_ns")
    phases = pl.sum_horizontal("input_ns", "forward_ns", "backward_ns", "optimizer_ns")
    buffered = pl.col("buffer_end_ns") - pl.col("buffer_begin_ns")
    before = pl.col("begin_ns") + pl.col("input_ns") + pl.col("forward_ns") + pl.col("backward_ns")
    stamped = pl.col("compute_end_ns").is_not_null()
    of_steps = {
        "a step ends before it begins": length <= 0,
        "a step begins before the one before it ends": pl.col("begin_ns")
        < pl.col("end_ns").shift(1).over(BLOCK) - slack,
        "a part of a step is negative": pl.min_horizontal(
            "input_ns",
            "forward_ns",
            "backward_ns",
            "optimizer_ns",
            "earlier_wait_ns",
            "buffer_wait_ns",
            "forward_wait_ns",
            "backward_wait_ns",
        )
        < -slack,
        "the parts of a step are longer than the step": stamped & (phases > length + slack),
        "backward's compute ends before the step begins, or after its communication": stamped
        & (
            (pl.col("compute_end_ns") < pl.col("begin_ns"))
            | (wait < -slack)
            | (pl.col("sync_end_ns") > pl.col("end_ns") + slack)
        ),
        "backward waits for longer than it lasts": stamped
        & (wait + pl.col("earlier_wait_ns") + pl.col("backward_wait_ns") > pl.col("backward_ns") + slack),
        "forward waits for parameters for longer than it lasts": stamped
        & (pl.col("buffer_wait_ns") + pl.col("forward_wait_ns") > pl.col("forward_ns") + slack),
        "forward waits for its buffers for longer than it lasts, or before or after its step": stamped
        & (pl.col("buffer_wait_ns") > 0)
        & (
            (pl.max_horizontal("buffer_wait_ns", buffered) > pl.col("forward_ns") + slack)
            | (buffered < 0)
            | (buffered > pl.col("buffer_wait_ns") + slack)
            | (pl.col("buffer_begin_ns") < pl.col("begin_ns") - slack)
            | (pl.col("buffer_end_ns") > pl.col("sync_end_ns") + slack)
        ),
    }
    if not plan.own_loop:  # an own loop may have its phases in another order
        of_steps["the phases of a step are not in order"] = stamped & (
            (before > pl.col("sync_end_ns") + slack)
            | (pl.col("sync_end_ns") + pl.col("optimizer_ns") > pl.col("end_ns") + slack)
        )
    yield from _broken(steps, of_steps)
    shared = steps.filter(pl.col("arm").is_in(TOGETHER) & (pl.col("world_size") > 1))
    yield from _apart(tables, shared, ["launch", "block", "step"], "begin_ns", "end_ns")


def _apart(
    tables: Tables, rows: pl.DataFrame, place: list[str], begin: str, end: str
) -> Iterator[pl.DataFrame]:
    """Rows of ranks that worked together and yet never at the same time: the rank farthest from the others."""
    bounds = pl.DataFrame(
        [(file.launch, file.clock_bound_ns or 0) for file in tables.ranks],
        schema={"launch": pl.Int64, "bound": pl.Int64},
        orient="row",
    )
    bounds = bounds.group_by("launch").agg(allowed=2 * pl.col("bound").max() + ACROSS_NS)
    group = [*place, "group"]
    rows = rows.with_columns(group=pl.col("rank") // pl.col("world_size"))
    apart = (
        rows.group_by(group)
        .agg(begun=pl.col(begin).max(), ended=pl.col(end).min())
        .join(bounds, on="launch", how="left")
        .filter(pl.col("begun") > pl.col("ended") + pl.col("allowed").fill_null(ACROSS_NS))
    )
    if apart.is_empty():
        return
    middle = (pl.col(begin) + pl.col(end)) // 2
    off = (middle - middle.median().over(group)).abs()
    odd = rows.join(apart, on=group, how="semi").filter(off == off.max().over(group))
    yield odd.with_columns(why=pl.lit("it worked with other ranks and never at the same time as they"))


def _collectives(
    tables: Tables, steps: pl.DataFrame, rows: pl.DataFrame, slack: int
) -> Iterator[pl.DataFrame]:
    extent = steps.select(*STEP, step_begin="begin_ns", step_end="end_ns")
    yield from _broken(
        rows,
        {
            "a collective was complete before it was launched": pl.col("done_ns")
            < pl.col("launch_ns") - slack,
            "a collective has no time": pl.col("arm").is_in([PROBE, REPLAY, FABRIC, PAIRS])
            & ((pl.col("launch_ns") <= 0) | (pl.col("done_ns") <= 0)),
            "a collective has no bytes, or is of no known kind": (pl.col("bytes") < 1)
            | ~pl.col("kind").is_between(0, len(KINDS) - 1)
            | (pl.col("seq") < 0),
            "a collective was enqueued after it was complete": (pl.col("done_ns") > 0)
            & (pl.col("enqueue_ns") > pl.col("done_ns") + slack),
            "a rank goes on before it began to wait": pl.col("resume_ns") < pl.col("wait_ns"),
            "a collective is of no known phase or unit": (pl.col("unit") < -1)
            | (pl.col("calls") < 1)
            | ~pl.col("phase").is_between(0, len(PHASES) - 1),
        },
    )
    # A host may enqueue a collective while its device is in an earlier step.
    taken = (pl.when(pl.col(name) > 0).then(name) for name in ("ready_ns", "launch_ns"))
    of_step = (
        rows.select(
            *STEP,
            "arm",
            "seq",
            first=pl.min_horizontal(*taken),
            last=pl.max_horizontal("ready_ns", "launch_ns", "done_ns"),
        )
        .group_by(STEP)
        .agg(
            pl.col("arm").first(),
            pl.col("first").min(),
            pl.col("last").max(),
            rows=pl.len(),
            different=pl.col("seq").max() - pl.col("seq").min() + 1,
        )
    )
    of_step = of_step.join(extent, on=STEP, how="left")
    room = slack + (pl.col("step_end") - pl.col("step_begin")) // 20
    yield from _broken(
        of_step,
        {
            "a collective lies outside of its step": (pl.col("first") < pl.col("step_begin") - room)
            | (pl.col("last") > pl.col("step_end") + room),
            "a collective of a step is missing or twice there": pl.col("different") != pl.col("rows"),
        },
    )
    shared = rows.filter(
        (pl.col("kind") == ALL_REDUCE)
        & (pl.col("world_size") > 1)
        & (pl.col("group") == pl.col("world_size"))  # those of one axis of a mesh have other ranks each
        & pl.col("arm").is_in([PROBE, REPLAY, FABRIC])
    )
    yield from _apart(tables, shared, ["launch", "block", "step", "seq"], "launch_ns", "done_ns")


def _traffic(rows: pl.DataFrame) -> pl.DataFrame:
    """What a step of each block sent on each rank."""
    return (
        rows.filter(pl.col("arm").is_in([PROBE, DDP_SOLO, REPLAY, FABRIC]))
        .group_by(*BLOCK, "world_size", "arm")
        .agg(
            steps=pl.col("step").n_unique(),
            calls=pl.len(),
            sent=pl.col("bytes").sum(),
            most=(pl.col("bytes") * (pl.col("seq") + 1)).sum(),
        )
        # A step's: blocks of later rounds may have fewer steps.
        .with_columns(pl.col("calls", "sent", "most") / pl.col("steps"))
    )


def _other_traffic(traffic: pl.DataFrame, blocks: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Blocks whose collectives are not those of the launch's other blocks of their arm, on this rank or on others.

    Of strategies side by side, each is compared with itself.
    """
    why = "its collectives are not those of the launch's other blocks of its arm"
    of = blocks.select(*BLOCK, pl.col("case").fill_null(-1)).unique(BLOCK)
    known = traffic.join(of, on=BLOCK, how="left").with_columns(pl.col("case").fill_null(-1))
    yield from _unlike(known, ["launch", "world_size", "arm", "case"], ["calls", "sent", "most"], why)
