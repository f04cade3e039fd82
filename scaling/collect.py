"""Rank files to tables. Whole blocks only; what is cut off or missing is said, never filled in.

Absolute stamps come out on rank 0's clock (scaling.rankfile).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from dataclasses import dataclass, field

import polars as pl

from scaling import codec
from scaling import plan as plans
from scaling.plan import Plan
from scaling.rankfile import SCHEMAS, RankFile, read_rank
from scaling.ranklines import read_head
from scaling.store import RunFolder

TABLE_SCHEMA = "1"
"""Version of the derived tables, in each Parquet file's metadata."""

CUT_OFF = "left records that are cut off; whole blocks are used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records of one rank that are not there."""

    launch: int
    rank: int
    what: str

    def __str__(self) -> str:
        return f"launch {self.launch}: rank {self.rank} {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All records of a run. One row a block and rank, a step and rank, a collective and rank."""

    blocks: pl.DataFrame
    steps: pl.DataFrame
    buckets: pl.DataFrame
    """Buckets of ddp_solo, probe, replay and pairs blocks."""
    fabric: pl.DataFrame
    """Messages of the size sweep."""
    parameters: pl.DataFrame
    """A row a ddp_solo block, rank and parameter in the order of registration: bytes, and when its gradient was
    ready, mean over the block's steps, since the step's begin. Empty on a device."""
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SCHEMAS["memory"]))
    """What each rank held after each block."""
    ranks: tuple[RankFile, ...]
    gaps: tuple[Gap, ...]
    """What is missing."""
    dropped_samples: int
    """Steps that were written but belong to no whole block."""


def collect(folder: RunFolder, plan: Plan) -> Tables:
    """Read every launch of a run."""
    found: dict[str, list[pl.DataFrame]] = {name: [pl.DataFrame(schema=of)] for name, of in SCHEMAS.items()}
    ranks: list[RankFile] = []
    gaps: list[Gap] = []
    for launch in folder.launches():
        world = plan.ranks
        for rank in range(plan.ranks):
            if rank >= world:
                break  # a launch of what was left has as many ranks as that needs
            try:
                file, rows = read_rank(launch.rank(rank), launch.index, rank)
            except FileNotFoundError:
                gaps.append(Gap(launch=launch.index, rank=rank, what="left no records"))
            except (OSError, ValueError) as error:
                gaps.append(
                    Gap(launch=launch.index, rank=rank, what=f"left nothing that can be read: {error}")
                )
            else:
                ranks.append(file)
                for name, frame in rows.items():
                    found[name].append(frame)
                world = file.world or world
                if file.cut_off:
                    gaps.append(Gap(launch=launch.index, rank=rank, what=CUT_OFF))
    return Tables(
        **{name: pl.concat(frames) for name, frames in found.items()},
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=sum(file.dropped_samples for file in ranks),
    )


def own_plan(folder: RunFolder) -> Plan | None:
    """The plan that the heads of an own loop's rank files carry: that of the latest launch; None where none does."""
    for launch in reversed(folder.launches()):
        for path in sorted(launch.path.glob("rank-*.jsonl")):
            with contextlib.suppress(OSError, ValueError):
                head = read_head(path)
                if head.plan is not None and head.plan.get("schema") == plans.SCHEMA:
                    return codec.decode(Plan, head.plan)
    return None


def write_tables(folder: RunFolder, tables: Tables) -> None:
    """The derived Parquet files, by rename. OSError where they cannot be written."""
    for name in ("blocks", "steps", "buckets", "fabric", "parameters"):
        path = folder.table(name)
        part = path.with_name(f".{path.name}.part")
        try:
            getattr(tables, name).write_parquet(part, metadata={"schema": TABLE_SCHEMA})
            part.replace(path)
        except pl.exceptions.PolarsError as error:  # its own word for whatever the system said
            full = shutil.disk_usage(path.parent).free < 2**20
            code = errno.ENOSPC if full else errno.EIO
            raise OSError(code, os.strerror(code), str(path)) from error
        finally:
            part.unlink(missing_ok=True)
