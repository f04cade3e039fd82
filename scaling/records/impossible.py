"""Look for records that cannot be while rows are read, a few blocks at a time (the rules: scaling.records.rules).

A rank's own stamps come from one clock that only goes forward, so they are compared almost exactly. Stamps of two ranks
are compared within the error of their clocks. None of the rules is about how long something may take: a slow step is a
result, not a defect. Pure, on whole tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import polars as pl

from scaling.records.frames import Frame, in_memory
from scaling.records.rank import RankFile
from scaling.records.rules.blocks import of_blocks
from scaling.records.rules.broken import apart_in_time
from scaling.records.rules.collectives import SHARED as SHARED_COLLECTIVE
from scaling.records.rules.collectives import of_collectives, of_traffic, shared_collectives, traffic_of
from scaling.records.rules.steps import SHARED as SHARED_STEP
from scaling.records.rules.steps import of_steps, shared_steps
from scaling.records.tables import Tables
from scaling.spec.plan import Plan

SLACK_NS = 50_000
"""Allowed on one rank's clock: rounding of a corrected clock, and a callback that is late."""
DEVICE_SLACK_NS = 500_000
"""The same where stamps are a device's events, which are converted to host time with an error."""
SCHEMA = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64, "arm": pl.String, "why": pl.String}


def found(tables: Tables, plan: Plan) -> pl.DataFrame:
    """(launch, rank, block, arm, why) for each rule that a block breaks on a rank."""
    rules = Rules(plan=plan)
    for part in tables.by_part():
        rules.note(rules.at(iter([part])))
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
    def at(self) -> Callable[[Iterator[Tables]], Seen]:
        """Looks at some blocks of a launch, some ranks at a time."""
        return partial(_look, self.plan)

    def note(self, seen: Seen) -> None:
        """Keep what was found in some blocks."""
        self.seen.broken.extend(seen.broken)
        self.seen.traffic.extend(seen.traffic)

    def found(self, blocks: Frame) -> pl.DataFrame:
        """As `found`, once all rows were looked at. `blocks`: of the whole run."""
        broken = [
            pl.DataFrame(schema=SCHEMA),
            *self.seen.broken,
            *_named(of_blocks(blocks, _slack(self.plan))),
        ]
        if self.seen.traffic and not self.plan.own_loop:
            broken += _named(of_traffic(pl.concat(self.seen.traffic), blocks))
        return pl.concat(broken).unique().sort("launch", "rank", "block", "why")


def _look(plan: Plan, parts: Iterator[Tables]) -> Seen:
    """`parts`: all rows of whole blocks, some ranks at a time."""
    slack, seen = _slack(plan), Seen()
    files: tuple[RankFile, ...] = ()
    stepped, sent = list[pl.DataFrame](), list[pl.DataFrame]()
    for part in parts:
        steps, files = in_memory(part.steps), part.ranks
        seen.broken.extend(_named(of_steps(part, steps, plan, slack)))
        stepped.append(shared_steps(steps))
        for rows in (in_memory(part.buckets), in_memory(part.fabric)):
            if rows.height:
                seen.broken.extend(_named(of_collectives(steps, rows, slack)))
                seen.traffic.append(traffic_of(rows))
                sent.append(shared_collectives(rows))
    for shared, place in ((stepped, SHARED_STEP), (sent, SHARED_COLLECTIVE)):
        if shared:
            seen.broken.extend(_named(apart_in_time(files, pl.concat(shared), place)))
    return seen


def _slack(plan: Plan) -> int:
    """Of stamps, ns."""
    return SLACK_NS if plan.spec.topology.device == "cpu" else DEVICE_SLACK_NS


def _named(rules: Iterator[pl.DataFrame]) -> list[pl.DataFrame]:
    return [part.select(list(SCHEMA)).cast(SCHEMA) for part in rules if part.height]  # type: ignore[arg-type]
