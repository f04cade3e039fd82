"""Blocks in which other programs took the cores, and machines whose hypervisor did. Pure.

Only a block without communication tells: its one thread wants one core, so any wait for it is somebody else's
doing. Where gradients travel the backend's own threads want cores too, and a wait may be for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from scaling.cases import LATENCY
from scaling.plan import Plan
from scaling.records import BARE_ALL, BARE_ONE

CONTENDED = 0.05
"""A block without communication whose thread had to wait for a core for more than this share was not alone."""
CONTENDED_SHARE = 0.1
"""So many blocks of that kind and it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stolen:
    """One machine's samples: shares of its busy time that its hypervisor gave to others."""

    hostname: str
    shares: tuple[float, ...]

    @property
    def often(self) -> int:
        """Samples with more than CONTENDED."""
        return sum(share > CONTENDED for share in self.shares)

    @property
    def said(self) -> bool:
        """Whether it was often enough to be told."""
        return self.often > CONTENDED_SHARE * len(self.shares)


def count(blocks: pl.DataFrame) -> tuple[int, int]:
    """(contended, all) blocks of bare compute, a rank's each."""
    alone = _alone(blocks)
    return int(alone["contended"].sum()), alone.height


def warnings(blocks: pl.DataFrame, plan: Plan, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """What a reader has to know where other programs ran, here or on the machine that this one is a part of."""
    contended, whole = count(blocks)
    said = [
        f"contended: in {host.often} of {len(host.shares)} samples of {host.hostname} its hypervisor kept more than "
        f"{CONTENDED:.0%} of the processors' time for others (steal); measure again later, or on a machine of one's own"
        for host in stolen
        if host.said
    ]
    if _crowded(blocks):
        said.append(
            f"contended: {contended} of {whole} compute blocks waited for a core more than {CONTENDED:.0%} of the "
            f"time: {_others(plan)} were running; intervals are wide, measure again on a quiet machine"
        )
    return tuple(said)


def doubts(blocks: pl.DataFrame, plan: Plan, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """What stands against every finding then."""
    if _crowded(blocks):
        return (f"{_others(plan)} were running on this machine: a hint, not a finding",)
    hosts = [host.hostname for host in stolen if host.said]
    return (
        (f"the hypervisor took processors away from {', '.join(hosts)}: a hint, not a finding",)
        if hosts
        else ()
    )


def beside(steps: pl.DataFrame, blocks: pl.DataFrame, world_size: int) -> tuple[bool | None, ...]:
    """For each of `steps` (launch, round, begin_ns), whether other programs ran then.

    That is what the block of bare compute says which lies nearest in the step's own round, on any rank of
    `world_size`. None where the round has no such block, or the kernel does not tell.
    """
    known = (
        _alone(blocks)
        .filter(pl.col("rank") < world_size)
        .group_by("launch", "round", "block")
        .agg(
            middle_ns=(pl.col("begin_ns").min() + pl.col("end_ns").max()) // 2,
            contended=pl.col("contended").max(),
        )
    )
    nearest = (
        steps.select("launch", "round", "begin_ns")
        .with_row_index("step")
        .join(known, on=["launch", "round"], how="left")
        .with_columns(apart_ns=(pl.col("begin_ns") - pl.col("middle_ns")).abs())
        .sort("step", "apart_ns", "block")
        .group_by("step", maintain_order=True)
        .first()
    )
    return tuple(nearest["contended"].to_list())


def _crowded(blocks: pl.DataFrame) -> bool:
    contended, whole = count(blocks)
    return contended > CONTENDED_SHARE * whole


def _others(plan: Plan) -> str:
    """Who can have taken the cores."""
    return "other programs or this run's own data workers" if plan.spec.data.workers else "other programs"


def _alone(blocks: pl.DataFrame) -> pl.DataFrame:
    """The blocks of bare compute with `contended`, which is null where the kernel does not tell."""
    waited = pl.when(pl.col("delayed_ns") >= 0).then(pl.col("delayed_ns"))
    return blocks.filter(pl.col("arm").is_in([BARE_ONE, BARE_ALL, LATENCY])).with_columns(
        contended=waited > CONTENDED * (pl.col("end_ns") - pl.col("begin_ns"))
    )
