"""How each trial of a run stands, from status.json and from the records on disk."""

from __future__ import annotations

import polars as pl

from scaling.records.frames import in_memory
from scaling.records.status import Status, TrialStatus
from scaling.records.tables import Tables
from scaling.spec.plan import Plan


def endings(plan: Plan, status: Status | None, tables: Tables) -> tuple[TrialStatus, ...]:
    """A status for each trial, in the plan's order. `status`: None where status.json is missing."""
    if plan.own_loop:
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
            said = next((str(gap) for gap in tables.gaps if gap.rank == missing), None)
            return TrialStatus(world_size=world_size, status="lost", error=said, rank=missing)
    return TrialStatus(world_size=world_size, status=stood.status, error=stood.error, rank=stood.rank)


def _without_status(world_size: int, tables: Tables) -> TrialStatus:
    """Done where some launch measured it and all its ranks' records are whole; the number of launches is not known."""
    whole = {(rank.launch, rank.rank) for rank in tables.ranks if not rank.cut_off}
    here = tables.blocks.filter(pl.col("world_size") == world_size)
    measured = in_memory(here.select("launch").unique())["launch"].to_list()
    if any(all((launch, rank) in whole for rank in range(world_size)) for launch in measured):
        return TrialStatus(world_size=world_size, status="done")
    return TrialStatus(world_size=world_size, status="lost", error="status.json is missing")
