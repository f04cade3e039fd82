"""Blocks in which other programs took the cores, and machines whose hypervisor took processor time. Pure.

Only blocks without communication are judged: their one thread needs one core, so any wait for a core is caused by
another program. With communication, the backend's own threads need cores too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from scaling.spec.cases import LATENCY
from scaling.spec.plan import Plan
from scaling.spec.schedule import BARE_ALL, BARE_ONE

CONTENDED = 0.05
"""A block is contended if its thread waited for a core for more than this share of the time."""
CONTENDED_SHARE = 0.1
"""A warning is given if more than this share of the blocks is contended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stolen:
    """One machine's samples: the share of busy processor time that its hypervisor gave to other machines."""

    hostname: str
    shares: tuple[float, ...]

    @property
    def often(self) -> int:
        """Samples with more than CONTENDED."""
        return sum(share > CONTENDED for share in self.shares)

    @property
    def said(self) -> bool:
        """Whether this happened often enough for a warning."""
        return self.often > CONTENDED_SHARE * len(self.shares)


def count(blocks: pl.DataFrame) -> tuple[int, int]:
    """(contended, all) blocks without communication, counted by rank."""
    alone = _alone(blocks)
    return int(alone["contended"].sum()), alone.height


def warnings(blocks: pl.DataFrame, plan: Plan, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """A warning for each machine that other programs, or other virtual machines, used at the same time."""
    contended, whole = count(blocks)
    said = [
        f"contended: in {host.often} of {len(host.shares)} samples of {host.hostname} the hypervisor gave more than "
        f"{CONTENDED:.0%} of the processors' time to other machines (steal); measure again later, or on a dedicated "
        "machine"
        for host in stolen
        if host.said
    ]
    if _crowded(blocks):
        said.append(
            f"contended: {contended} of {whole} compute blocks waited for a core more than {CONTENDED:.0%} of the "
            f"time, because {_others(plan)} were running; intervals are wide; measure again on a quiet machine"
        )
    return tuple(said)


def doubts(blocks: pl.DataFrame, plan: Plan, stolen: Sequence[Stolen] = ()) -> tuple[str, ...]:
    """The reason why every finding is only a hint, if other programs ran."""
    if _crowded(blocks):
        return (f"{_others(plan)} were running on this machine, so this is a hint, not a finding",)
    hosts = [host.hostname for host in stolen if host.said]
    return (
        (
            f"the hypervisor took processor time away from {', '.join(hosts)}, so this is a hint, not a finding",
        )
        if hosts
        else ()
    )


def beside(steps: pl.DataFrame, blocks: pl.DataFrame, world_size: int) -> tuple[bool | None, ...]:
    """For each of `steps` (launch, round, begin_ns), whether other programs ran then.

    The answer is taken from the nearest block without communication in the same round, on any rank of `world_size`.
    None where the round has no such block, or the kernel does not report waiting.
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
    """The programs that may have taken the cores."""
    return "other programs or this run's own data workers" if plan.spec.data.workers else "other programs"


def _alone(blocks: pl.DataFrame) -> pl.DataFrame:
    """Blocks without communication, with `contended`: null where the kernel does not report waiting."""
    waited = pl.when(pl.col("delayed_ns") >= 0).then(pl.col("delayed_ns"))
    return blocks.filter(pl.col("arm").is_in([BARE_ONE, BARE_ALL, LATENCY])).with_columns(
        contended=waited > CONTENDED * (pl.col("end_ns") - pl.col("begin_ns"))
    )
