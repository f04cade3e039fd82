"""Which world size efficiency is over. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from scaling.analysis.quantities import TrialRecords
from scaling.plan import Plan
from scaling.records import BARE_ONE


def world_size(plan: Plan, records: Mapping[int, TrialRecords]) -> int:
    """1: a rank alone. Else the smallest world size measured, where no rank ran strong scaling's whole batch alone.

    It was not asked to, or had not the memory for it. `records`: by world size.
    """
    alone = 1 in records and not records[1].arm(BARE_ONE).is_empty()
    if plan.spec.mode != "strong" or alone:
        return 1
    return min((n for n, found in records.items() if not found.index.is_empty()), default=1)


def said(size: int) -> tuple[str, ...]:
    """What a reader has to know where that is not one rank."""
    if size == 1:
        return ()
    return (
        f"no rank ran the whole batch alone: efficiency and speedup are over {size} ranks, the smallest world size "
        "that was measured, and what is lost is not told by cause",
    )
