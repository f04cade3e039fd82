"""All rank files of a launch, read before their steps, in other processes where they are large; and what is missing."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import polars as pl

from scaling.reading import read_bytes
from scaling.records.columns import LINES, OF_BLOCKS
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.processes import Processes
from scaling.records.rank import Rank, RankFile, Stored, read_rank
from scaling.records.seal import digest
from scaling.records.window import Stretch
from scaling.spec.plan import Plan

KEPT_BYTES = 256 << 20
"""So many bytes of a run's files are kept until their steps are read; of larger ones parts are read again."""
SHARE = 64
"""Rank files that a process reads at a time."""
CUT_OFF = "left records that are cut off; whole blocks are used"
Groups = dict[tuple[int, ...], tuple[int, ...]]
"""Groups of ranks by their ranks: every rank of a group names all, and all have one tuple of them in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records that are missing, of one rank or of a whole launch."""

    launch: int
    rank: int | None = None
    what: str

    def __str__(self) -> str:
        whose = "" if self.rank is None else f"rank {self.rank} "
        return f"launch {self.launch}: {whose}{self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What the ranks of a launch left."""

    files: tuple[RankFile, ...]
    tables: dict[str, pl.DataFrame]
    """Their rows of `blocks` and `memory`, those of a rank after each other."""
    stretch: Stretch
    """Where all steps lie."""
    gaps: tuple[Gap, ...]


@dataclass(slots=True)
class Kept:
    """Files whose text is kept: in memory, or where other processes have to see it, as copies in one file."""

    path: Path | None = None
    bytes: int = 0


class Job(NamedTuple):
    """A rank file to read."""

    rank: int
    path: Path
    room_bytes: int
    """What may be kept of it: all, or nothing where it is longer."""
    copy: tuple[Path, int] | None
    """The file for its copy, and where that begins; None: it is kept in memory."""


@dataclass(slots=True)
class Share:
    """What some files said."""

    ranks: list[Rank] = field(default_factory=list)
    """Without their tables."""
    tables: list[dict[str, pl.DataFrame]] = field(default_factory=list)
    broken: dict[int, str] = field(default_factory=dict)
    """Why a file cannot be used, by rank."""

    def joined(self) -> Share:
        """With its tables as one."""
        one = {
            name: pl.concat([pl.DataFrame(schema=schema), *(of[name] for of in self.tables)])
            for name, schema in OF_BLOCKS.items()
        }
        return dataclasses.replace(self, tables=[one])


def size_bytes(path: Path) -> int:
    """Of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_ranks(launch: LaunchFolder, plan: Plan, kept: Kept, processes: Processes) -> Ranks:
    """What the ranks of a launch left; a gap for each that left nothing."""
    jobs = []
    for rank in launch.ranks():
        path = launch.rank(rank)
        room = size_bytes(path)
        room = room if kept.bytes + room <= KEPT_BYTES else 0
        copy = None if kept.path is None else (kept.path, kept.bytes)
        jobs.append(Job(rank, path, room, copy))
        kept.bytes += room
    shares = [(launch.index, jobs[k : k + SHARE]) for k in range(0, len(jobs), SHARE)]
    whole, groups = Share(), Groups()
    for share in processes.each(read_share, shares):
        whole.ranks += [_interned(rank, groups) for rank in share.ranks]
        whole.tables += share.tables
        whole.broken |= share.broken
    ranks, broken = whole.ranks, whole.broken
    tables = whole.joined().tables[0]
    # A later launch has only as many ranks as the trials that were left need.
    said = Counter(of.file.world for of in ranks if of.file.world)
    world = said.most_common(1)[0][0] if said else plan.ranks
    world = min(world, max(plan.ranks, len(ranks) + len(broken)))
    if any(of.file.rank >= world for of in ranks):
        why = f"is none of the launch's {world} ranks, so its records are left out"
        broken |= {of.file.rank: why for of in ranks if of.file.rank >= world}
        ranks = [of for of in ranks if of.file.rank < world]
        tables = {name: frame.filter(pl.col("rank") < world) for name, frame in tables.items()}
    there = {of.file.rank for of in ranks} | broken.keys()
    broken |= {rank: "left no records" for rank in range(world) if rank not in there}
    return Ranks(
        files=tuple(of.file for of in ranks),
        tables=tables | {"blocks": tables["blocks"].drop(list(LINES))},
        stretch=Stretch(
            launch=launch.index, blocks=tables["blocks"], files={of.file.rank: of.stored for of in ranks}
        ),
        gaps=tuple(Gap(launch=launch.index, rank=rank, what=what) for rank, what in sorted(broken.items())),
    )


def read_share(launch: int, jobs: Iterable[Job]) -> Share:
    """Read some files of a launch, each once."""
    found, groups = Share(), Groups()
    for job in jobs:
        try:
            rank = read_rank(job.path, launch, job.rank)
        except (OSError, ValueError) as error:
            found.broken[job.rank] = f"left nothing that can be read: {error}"
            continue
        found.tables.append(rank.tables)
        rank = dataclasses.replace(rank, tables={}, stored=_kept(rank, job))
        found.ranks.append(_interned(rank, groups))
    return found.joined()


def _kept(rank: Rank, job: Job) -> Stored:
    """The rank's file with its text, with a copy of it, or with neither."""
    stored, text = rank.stored, rank.stored.text or b""
    if len(text) <= job.room_bytes and job.copy is None:
        return stored
    copied = False
    if len(text) <= job.room_bytes and job.copy is not None:
        try:
            copied = _write_at(*job.copy, text)
        except OSError:  # no room: parts of the file are read again
            copied = False
    return dataclasses.replace(stored, text=None, copy=job.copy if copied else None)


def _write_at(path: Path, begin: int, text: bytes) -> bool:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return os.pwrite(descriptor, text, begin) == len(text)
    finally:
        os.close(descriptor)


def _interned(rank: Rank, groups: Groups) -> Rank:
    of = {key: groups.setdefault(ranks, ranks) for key, ranks in rank.file.groups.items()}
    return dataclasses.replace(rank, file=dataclasses.replace(rank.file, groups=of))


def lacks(file: RankFile, done: Collection[int]) -> list[str]:
    """What is missing from a file. `done`: launches that status.json calls done."""
    said = []
    if file.damaged:
        said.append(
            f"left records that changed after they were written (their checksums do not hold): "
            f"{_few(file.damaged)}, left out"
        )
    if file.cut_off:
        said.append(CUT_OFF)
    elif file.launch in done and not file.ended:
        said.append("left records that end before the launch did")
    return said


def other_plan(folder: RunFolder, launch: int, files: Sequence[RankFile]) -> list[Gap]:
    """What is said where plan.json is not what the ranks of a launch read."""
    noted = {file.plan_digest for file in files} - {""}
    try:
        now = digest(read_bytes(folder.plan)) if noted else ""
    except OSError:
        return []
    if noted <= {now}:
        return []
    what = (
        "plan.json has changed since it was measured; what its blocks say themselves is used before the plan"
    )
    return [Gap(launch=launch, what=what)]


def _few(names: Sequence[str], most: int = 4) -> str:
    """A list in words, its end counted where it is long."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
