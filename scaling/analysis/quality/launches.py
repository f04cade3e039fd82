"""Choose the launches that a trial's numbers come from. Pure.

Arms are compared within a launch, so that differences between launches (time of day, hosts, process start) do not
appear as a loss. A trial is therefore read from the launches that measured it completely. If there is none, it is read
from launches that were cut off but have complete rounds; and if no round is complete, from the launch with most blocks.

Say which rounds have details where the plan gave them to some rounds only. Pure.

How each trial of a run stands, from status.json and from the records on disk.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import polars as pl

from scaling.records.run import Status, TrialStatus
from scaling.records.tables import SCHEMAS, Frame, Tables, in_memory
from scaling.settings.plan import Plan, Trial
from scaling.settings.sample import details_line
from scaling.settings.schedule import BARE_ONE, PAIRS, PLAIN, arms_of

OWN_KINDS = 3
"""Kinds of blocks in a round of an own loop: plain, with phase stamps, and with phase stamps and buckets."""


def counted(tables: Tables, plan: Plan, trial: Trial) -> frozenset[int]:
    """Launches that count for a trial; empty if it was not measured at all."""
    n = trial.world_size
    facts = ["launch", "round", "arm", "detailed", "batch"]
    here = (pl.col("world_size") == n) & ~pl.col("arm").is_in([BARE_ONE, PAIRS]) & (pl.col("rank") < n)
    blocks = in_memory(tables.blocks.filter(here).group_by(facts).agg(ranks=pl.len()))
    blocks = blocks.filter((pl.col("arm") == PLAIN).any().over("launch"))
    measured = blocks["launch"].unique().to_list()
    whole = [launch for launch in measured if _ended(tables, launch)]
    if whole:
        return frozenset(whole)
    if plan.kind.followed:
        rounds, kinds = blocks.filter(pl.col("round") >= 0), OWN_KINDS  # its baseline has rounds of its own
    else:
        batches = {t.batch for t in (trial, *plan.baseline((trial,)))}
        of_batches = (pl.col("arm") == BARE_ONE) & pl.col("batch").is_in(list(batches))
        alone = in_memory(tables.blocks.filter(of_batches).select(facts).unique())
        rounds, kinds = (
            pl.concat([blocks.select(facts), alone]),
            len(set(arms_of(n, plan.content))) + len(batches),
        )
    arms_run = rounds.group_by("launch", "round").agg(arms=pl.struct("arm", "detailed", "batch").n_unique())
    full = set(arms_run.filter(pl.col("arms") == kinds)["launch"]) & set(measured)
    most = blocks.group_by("launch").agg(pl.col("ranks").sum()).sort("ranks", "launch")["launch"].tail(1)
    return frozenset(full or most)


def of_launches(tables: Tables, launches: frozenset[int]) -> Tables:
    """The records of some launches; the same object if these are all of them."""
    recorded = {rank.launch for rank in tables.ranks} | {
        gap.launch for gap in tables.gaps if gap.rank is not None
    }
    if launches >= recorded | tables.launches:
        return tables
    chosen = pl.col("launch").is_in(sorted(launches))
    return tables.having(
        {name: getattr(tables, name).filter(chosen) for name in SCHEMAS},
        ranks=tuple(rank for rank in tables.ranks if rank.launch in launches),
        gaps=tuple(gap for gap in tables.gaps if gap.launch in launches or gap.rank is None),
        parts=tuple(part for part in tables.parts if part.launch in launches),
    )


def span_ns(blocks: Frame) -> int:
    """The sum over launches of the time from the first block to the last; time between launches does not count."""
    return int(_spans(blocks)["ns"].sum())


def before_ns(blocks: Frame) -> pl.DataFrame:
    """(launch, before_ns): total span of the launches before each one, since stamps of two launches share no clock."""
    spans = _spans(blocks).sort("launch")
    return spans.select("launch", before_ns=pl.col("ns").cum_sum() - pl.col("ns"))


def _spans(blocks: Frame) -> pl.DataFrame:
    """(launch, ns): from its first block to its last, on the clock of its own rank 0."""
    return in_memory(blocks.group_by("launch").agg(ns=pl.col("end_ns").max() - pl.col("begin_ns").min()))


def launch_sentences(counted: Mapping[int, Collection[int]], tables: Tables) -> tuple[str, ...]:
    """Warnings where the trials do not all come from the same launches, or where a launch is not counted."""
    used = {launch for launches in counted.values() for launch in launches}
    lines = []
    if len({frozenset(launches) for launches in counted.values() if launches}) > 1:
        which = "; ".join(f"{n}: {_list(launches)}" for n, launches in counted.items() if launches)
        lines.append(
            f"world sizes were measured in different launches ({which}), and the intervals do not cover what changes "
            "from launch to launch"
        )
    unused = tables.launches - used
    if unused and used:
        whole = all(_ended(tables, launch) for launch in used)
        why = (
            f"launch {_list(used)} measured the same trials whole"
            if whole
            else "other launches measured more of the same trials"
        )
        lines.append(f"launch {_list(unused)} was cut off and is not counted: {why}")
    return tuple(lines)


def _ended(tables: Tables, launch: int) -> bool:
    """Whether every rank of a launch wrote its records to the end; an own loop may also end with an exception."""
    files = {rank.rank: rank for rank in tables.ranks if rank.launch == launch}
    world = max((file.world for file in files.values()), default=0)
    return bool(files) and all(
        rank in files and (files[rank].ended or files[rank].state is not None) and not files[rank].cut_off
        for rank in range(max(world, len(files)))
    )


def _list(launches: Collection[int]) -> str:
    return ", ".join(map(str, sorted(launches)))


def warnings(tables: Tables, plan: Plan) -> tuple[str, ...]:
    """A line for each launch of which only some measured rounds have details."""
    by_launch = {file.launch: file.detailed for file in tables.ranks if file.detailed}
    lines = []
    for launch, detailed in sorted(by_launch.items()):
        plain = tables.blocks.filter((pl.col("launch") == launch) & (pl.col("arm") == PLAIN))
        numbers = set(in_memory(plain.select("round").unique())["round"])
        if numbers - detailed:
            where = f"launch {launch}: " if len(by_launch) > 1 else ""
            lines.append(f"{where}{details_line(plan, detailed, max(numbers) + 1)}")
    return tuple(lines)


def endings(plan: Plan, status: Status | None, tables: Tables) -> tuple[TrialStatus, ...]:
    """A status for each trial, in the plan's order. `status`: None where status.json is missing."""
    if plan.kind.followed:
        return tuple(_of_own_loop(t.world_size, tables) for t in plan.trials)
    return tuple(_of_trial(t.world_size, status, tables) for t in plan.trials)


def _of_own_loop(world_size: int, tables: Tables) -> TrialStatus:
    """How an own loop stands, from the end of its latest launch's records."""
    latest = max((rank.launch for rank in tables.ranks), default=0)
    ranks = {rank.rank: rank for rank in tables.ranks if rank.launch == latest}
    failed = next((rank for rank in ranks.values() if rank.state == "failed"), None)
    missing = next((rank for rank in range(world_size) if rank not in ranks), None)
    going = next((rank.rank for rank in ranks.values() if rank.state is None), None)
    if failed is not None:
        return TrialStatus(world_size=world_size, status="failed", error=failed.error, rank=failed.rank)
    if missing is not None:
        return TrialStatus(world_size=world_size, status="lost", error="left no records", rank=missing)
    if going is not None:
        error = "the loop was still running, or was ended from outside"
        return TrialStatus(world_size=world_size, status="interrupted", error=error, rank=going)
    return TrialStatus(world_size=world_size, status="done")


def _of_trial(world_size: int, status: Status | None, tables: Tables) -> TrialStatus:
    """How one trial stands, from how the launches ended and from the records on disk."""
    stood = next((t for t in status.trials if t.world_size == world_size), None) if status else None
    if stood is None:
        return _without_status(world_size, tables)
    if stood.status == "running":
        return TrialStatus(world_size=world_size, status="interrupted", error="the run was cut off")
    if stood.status == "done":
        whole = {(rank.launch, rank.rank) for rank in tables.ranks if rank.ended and not rank.cut_off}
        wanted = [(launch, rank) for launch in stood.launches for rank in range(world_size)]
        missing = next((rank for launch, rank in wanted if (launch, rank) not in whole), None)
        if missing is not None:
            error = next((str(gap) for gap in tables.gaps if gap.rank == missing), None)
            return TrialStatus(world_size=world_size, status="lost", error=error, rank=missing)
    return TrialStatus(world_size=world_size, status=stood.status, error=stood.error, rank=stood.rank)


def _without_status(world_size: int, tables: Tables) -> TrialStatus:
    """Done where some launch measured it and all its ranks' records are whole; the number of launches is not known."""
    whole = {(rank.launch, rank.rank) for rank in tables.ranks if not rank.cut_off}
    here = tables.blocks.filter(pl.col("world_size") == world_size)
    measured = in_memory(here.select("launch").unique())["launch"].to_list()
    if any(all((launch, rank) in whole for rank in range(world_size)) for launch in measured):
        return TrialStatus(world_size=world_size, status="done")
    return TrialStatus(world_size=world_size, status="lost", error="status.json is missing")
