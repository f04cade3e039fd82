"""Traffic beside the gradients' buckets: what was seen of it, and what a verdict may lack without it. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from scaling.analysis.decompose.quantities import MIXED, TrialRecords
from scaling.analysis.results import Verdict
from scaling.analysis.results.verdicts import NOTABLE, undecided
from scaling.records.tables import Frame, Tables, in_memory
from scaling.settings.plan import Plan
from scaling.settings.schedule import PHASES, PROBE
from scaling.units import format_bytes

_STEP = ["launch", "block", "step", "rank"]
_OF_PHASES = ("input", "host", "overlap")
"""Causes that are differences of phases, which hold the waits in collectives beside the model's own."""
_OUTSIDE = ("input", "host")
"""Causes that are phases outside of what the followed models compute."""
UNSEEN = (
    "a step has a backward whose forward was not seen (another model's), and which counts as input or host, so neither "
    "is named as a cause: `Probe()` without a model, and `scaling launch --no-probe`, see the forwards of all"
)


def warnings(tables: Tables, plan: Plan, buffers_bytes: int) -> tuple[str, ...]:
    """What is known of the buffers' broadcasts, of the bitmap of used parameters, and of other collectives."""
    lines = [text for text in (_beside(others(tables), plan),) if text]
    light = tables.blocks.filter((pl.col("arm") == PROBE) & ~pl.col("detailed"))
    if in_memory(light.group_by("world_size", "rank").agg(mixed=MIXED))["mixed"].any():
        lines.append(UNSEEN)
    if _unseen(tables, plan, buffers_bytes):
        lines.append(
            f"the module has {format_bytes(buffers_bytes)} of buffers, which DDP broadcasts before forward; the waits "
            "there were not seen (torch.compile around DDP hides them) and count as forward"
        )
    elif buffers_bytes and plan.ranks > 1 and (share := share_in_buffers(tables)):
        lines.append(
            f"the module has {format_bytes(buffers_bytes)} of buffers, which DDP broadcasts before forward: "
            f"{share:.1%} of the step, counted as exposed transfer and skew, not in the gradients' traffic"
        )
    if plan.spec.ddp.find_unused_parameters and plan.ranks > 1:
        lines.append(
            "find_unused_parameters: its extra all-reduce is in the step time and not in the gradients' traffic"
        )
    return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Collectives of a step that are neither the gradients' nor the buffers' (another model's, SyncBatchNorm's)."""

    calls: int = 0
    bytes: int = 0
    share: float = 0.0
    """Largest share of a step that any rank spent in them: sum from launch to done, without the wait for DDP's last
    bucket."""


def others(tables: Tables) -> Others:
    """What a tap saw of them in detailed steps; nothing where there are none."""
    beside = (pl.col("arm") == PROBE) & pl.col("detailed") & (pl.col("phase") == PHASES.index("other"))
    rows = in_memory(tables.buckets.filter(beside))
    if rows.is_empty():
        return Others()
    steps = in_memory(_stamped(tables).filter(pl.col("detailed")))
    ends = steps.select(*_STEP, "compute_end_ns", "sync_end_ns")
    inside = pl.min_horizontal("done_ns", "sync_end_ns") - pl.max_horizontal("launch_ns", "compute_end_ns")
    alone = pl.col("done_ns") - pl.col("launch_ns") - pl.max_horizontal(inside, 0)
    each = rows.join(ends, on=_STEP).group_by("rank").agg(time=alone.sum())
    lengths = steps.group_by("rank").agg(length=(pl.col("end_ns") - pl.col("begin_ns")).sum())
    share = each.join(lengths, on="rank").select((pl.col("time") / pl.col("length")).max()).item()
    return Others(
        calls=round(rows.height / steps.height),
        bytes=round(rows["bytes"].sum() / steps.height),
        share=min(1.0, float(share or 0.0)),
    )


def _beside(seen: Others, plan: Plan) -> str:
    if not seen.calls:
        return ""
    counted = (
        "as communication where waits were seen" if plan.kind.followed else "in the phase where they lie"
    )
    calls = "1 collective" if seen.calls == 1 else f"{seen.calls} collectives"
    return (
        f"a step has {calls} other than the model's own ({format_bytes(seen.bytes)}; another model's, SyncBatchNorm's "
        f"or the loop's): up to {seen.share:.1%} of the step on a rank, counted {counted}"
    )


def bounded(
    verdicts: tuple[Verdict, ...], tables: Tables, trials: Sequence[TrialRecords]
) -> tuple[Verdict, ...]:
    """The verdicts without causes that rest on phases in which ranks may have waited in other collectives.

    `trials`: those of the verdicts. Where an own loop's calls were followed to their waits, no phase holds any.
    Nor is `input` or `host` named where the forward of another model counts as it.
    """
    mixed = {r.trial.world_size for r in trials if r.beside.unseen_forwards}
    if not {(v.cause, v.world_size) for v in verdicts}.isdisjoint(itertools.product(_OUTSIDE, mixed)):
        unmixed = tuple(v for v in verdicts if v.cause not in _OUTSIDE or v.world_size not in mixed)
        return bounded(unmixed or (undecided(verdicts[0].world_size, UNSEEN),), tables, trials)
    followed = {r.trial.world_size for r in trials if r.beside.bytes >= 0 and not hides_waits(r)}
    lost = [v for v in verdicts if v.cause in _OF_PHASES and v.world_size not in followed]
    seen = others(tables)
    if seen.share <= NOTABLE or not lost:
        return verdicts
    kept = [v for v in verdicts if v not in lost]
    named = ", ".join(dict.fromkeys(v.cause for v in lost))
    why = (
        f"{named}: cannot be told from waiting for other ranks in collectives other than the model's own, which take "
        f"up to {seen.share:.0%} of a step"
    )
    return (undecided(lost[0].world_size, why), *kept)


LITTLE = 0.01
"""A smaller share of a step's bytes may be unclaimed, where the loop asked for none of them instead of waiting."""
UNCLAIMED = "were not seen to be waited for, so who is late is not known"


def hides_waits(records: TrialRecords) -> bool:
    """Whether ranks may have waited for each other where nobody saw it, so that own times do not say who is late."""
    return records.beside.polled or _unclaimed(records) > LITTLE or _apart(records)


APART = (
    "no rank was seen to send anything in a step, or to wait for another, so each may train a model of its own: wrap "
    "it (DistributedDataParallel, fully_shard) where there are several ranks"
)


def _apart(records: TrialRecords) -> bool:
    """Whether the calls of several ranks were counted, and there was none."""
    counted = records.trial.world_size > 1 and records.beside.bytes == 0
    return counted and records.light is None and not records.bucket_bytes


def _unclaimed(records: TrialRecords) -> float:
    """The share of a step's bytes that nobody was seen to wait for."""
    sent = max(1, records.beside.bytes, sum(records.bucket_bytes))
    return records.beside.unclaimed_bytes / sent


def without_late(verdicts: Sequence[Verdict], records: TrialRecords) -> tuple[Verdict, ...]:
    """The verdicts, or why there are none at a world size at which waits are hidden."""
    if not hides_waits(records):
        return tuple(verdicts)
    why, n = f"{_unclaimed(records):.0%} of the bytes that a step sends {UNCLAIMED}", records.trial.world_size
    if _apart(records):
        why = APART
    if records.beside.polled:
        why += "; the loop asked whether they had arrived instead (Work.is_completed); wait() would be seen"
    return (undecided(n, why), *(v for v in verdicts if v.world_size != n))


def of_hidden_waits(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Those of `without_late`."""
    return [v for v in verdicts if any(UNCLAIMED in line or APART in line for line in v.evidence)]


def doubts(tables: Tables, plan: Plan, buffers_bytes: int) -> tuple[str, ...]:
    """The reason why a finding is only a hint, where ranks may have waited for each other unseen."""
    if not _unseen(tables, plan, buffers_bytes):
        return ()
    return ("waits for DDP's broadcast of buffers were not seen, so this is a hint, not a finding",)


def _unseen(tables: Tables, plan: Plan, buffers_bytes: int) -> bool:
    if buffers_bytes <= 0 or plan.ranks < 2:
        return False
    most = in_memory(_stamped(tables).select(pl.col("buffer_wait_ns").max(), rows=pl.len()))
    return most["rows"].item() > 0 and not most["buffer_wait_ns"].item()


def share_in_buffers(tables: Tables) -> float:
    """Mean share of a stamped step, over all ranks."""
    length = (pl.col("end_ns") - pl.col("begin_ns")).sum()
    waited, lasted = in_memory(_stamped(tables).select(pl.col("buffer_wait_ns").sum(), length=length)).row(0)
    return float(waited / lasted) if lasted else 0.0


def _stamped(tables: Tables) -> Frame:
    return tables.steps.filter((pl.col("arm") == PROBE) & (pl.col("world_size") > 1))
