"""Rank files to tables: all files of a launch, then their steps, in other processes where they are large."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import polars as pl

from scaling.reading import read_bytes
from scaling.records.decode import Gap, RankFile
from scaling.records.encoding import digest
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.processes import Processes, cores
from scaling.records.rank_file import Rank, Stored, read_rank
from scaling.records.run import Status, read_status
from scaling.records.steps import Stretch
from scaling.records.tables import (
    EMPTY,
    LINE_SPAN,
    OF_BLOCKS,
    Part,
    Scratch,
    Tables,
    scan_parts,
    scan_rows,
    write_part,
    write_rows,
)
from scaling.settings.plan import Plan

KEPT_BYTES = 256 << 20
"""So many bytes of a run's files are kept until their steps are read; of larger ones parts are read again."""
SHARE = 64
"""Rank files that a process reads at a time."""
CUT_OFF = "left records that are cut off; whole blocks are used"
Groups = dict[tuple[int, ...], tuple[int, ...]]
"""Groups of ranks by their ranks: every rank of a group names all, and all have one tuple of them in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRanks:
    """What the ranks of a launch left."""

    files: tuple[RankFile, ...]
    tables: dict[str, pl.DataFrame]
    """Their rows of tables.OF_BLOCKS, those of a rank after each other."""
    stretch: Stretch
    """Where all steps lie."""
    gaps: tuple[Gap, ...]


@dataclass(slots=True)
class Copies:
    """Files whose text is kept: in memory, or where other processes have to see it, as copies in one file."""

    path: Path | None = None
    bytes: int = 0


class RankJob(NamedTuple):
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
        joined = {
            name: pl.concat([pl.DataFrame(schema=schema), *(tables[name] for tables in self.tables)])
            for name, schema in OF_BLOCKS.items()
        }
        return replace(self, tables=[joined])


def size_bytes(path: Path) -> int:
    """Size of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_ranks(launch: LaunchFolder, plan: Plan, kept: Copies, processes: Processes) -> LaunchRanks:
    """What the ranks of a launch left; a gap for each that left nothing."""
    jobs = []
    for rank in launch.ranks():
        path = launch.rank(rank)
        room = size_bytes(path)
        room = room if kept.bytes + room <= KEPT_BYTES else 0
        copy = None if kept.path is None else (kept.path, kept.bytes)
        jobs.append(RankJob(rank, path, room, copy))
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
    worlds = Counter(rank.file.world for rank in ranks if rank.file.world)
    world = worlds.most_common(1)[0][0] if worlds else plan.ranks
    world = min(world, max(plan.ranks, len(ranks) + len(broken)))
    if any(rank.file.rank >= world for rank in ranks):
        why = f"is none of the launch's {world} ranks, so its records are left out"
        broken |= {rank.file.rank: why for rank in ranks if rank.file.rank >= world}
        ranks = [rank for rank in ranks if rank.file.rank < world]
        tables = {name: frame.filter(pl.col("rank") < world) for name, frame in tables.items()}
    present = {rank.file.rank for rank in ranks} | broken.keys()
    broken |= {rank: "left no records" for rank in range(world) if rank not in present}
    return LaunchRanks(
        files=tuple(rank.file for rank in ranks),
        tables=tables | {"blocks": tables["blocks"].drop(list(LINE_SPAN))},
        stretch=Stretch(
            launch=launch.index, blocks=tables["blocks"], files={r.file.rank: r.stored for r in ranks}
        ),
        gaps=tuple(Gap(launch=launch.index, rank=rank, what=what) for rank, what in sorted(broken.items())),
    )


def read_share(launch: int, jobs: Iterable[RankJob]) -> Share:
    """Read some files of a launch, each once."""
    share, groups = Share(), Groups()
    for job in jobs:
        try:
            rank = read_rank(job.path, launch, job.rank)
        except (OSError, ValueError) as error:
            share.broken[job.rank] = f"left nothing that can be read: {error}"
            continue
        share.tables.append(rank.tables)
        rank = replace(rank, tables={}, stored=_kept(rank, job))
        share.ranks.append(_interned(rank, groups))
    return share.joined()


def _kept(rank: Rank, job: RankJob) -> Stored:
    """The rank's file with its text, with a copy of it, or with neither."""
    stored, text = rank.stored, rank.stored.text or b""
    if len(text) <= job.room_bytes and job.copy is None:
        return stored
    copied = False
    if len(text) <= job.room_bytes and job.copy is not None:
        with contextlib.suppress(OSError):  # no room: parts of the file are read again
            copied = _write_at(*job.copy, text)
    return replace(stored, text=None, copy=job.copy if copied else None)


def _write_at(path: Path, begin: int, text: bytes) -> bool:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return os.pwrite(descriptor, text, begin) == len(text)
    finally:
        os.close(descriptor)


def _interned(rank: Rank, groups: Groups) -> Rank:
    shared = {key: groups.setdefault(ranks, ranks) for key, ranks in rank.file.groups.items()}
    return replace(rank, file=replace(rank.file, groups=shared))


def lacks(file: RankFile, done: Collection[int]) -> list[str]:
    """What is missing from a file. `done`: launches that status.json calls done."""
    reasons = []
    if file.damaged:
        reasons.append(
            f"left records that changed after they were written (their checksums do not hold): "
            f"{_few(file.damaged)}, left out"
        )
    if file.cut_off:
        reasons.append(CUT_OFF)
    elif file.launch in done and (not file.ended or file.blocks is None):
        reasons.append("left records that end before the launch did")
    return reasons


def other_plan(folder: RunFolder, launch: int, files: Sequence[RankFile]) -> list[Gap]:
    """What is said where plan.json is not what the ranks of a launch read."""
    noted = {file.plan_digest for file in files} - {""}
    try:
        now = digest(read_bytes(folder.plan)) if noted else ""
    except OSError:
        return []
    if noted <= {now}:
        return []
    what = "plan.json has changed since it was measured; what follows from its settings may be wrong"
    return [Gap(launch=launch, what=what)]


def _few(names: Sequence[str]) -> str:
    """A list in words, its end counted where it is long."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


PROCESSES_BYTES = 32 << 20
"""From so many bytes of rank files on, about two million rows, other processes read them."""
STRETCH_BYTES = 8 << 20
"""What a process reads of them at a time, some 400,000 rows (70 MB of columns), or the lines of one block."""

RANKS = 512
"""Ranks whose blocks are in one file."""

R = TypeVar("R")
_Given = tuple[Mapping[int, Stored], Tables, Callable[[Tables], Any]]
"""What all stretches of a launch need: its files, its ranks, and who looks."""


def collect(folder: RunFolder, plan: Plan, look: Callable[[Tables], R]) -> tuple[Tables, list[R]]:
    """The tables, and what `look` returns for all rows of some whole blocks at a time, while they are in memory.

    Every launch that status.json knows is read; all where there is none. `look` can go to other processes.
    OSError where the tables cannot be written to files, in the run's folder or, if that is read-only, elsewhere.
    """
    status = None if plan.kind.followed else read_status(folder)
    launches, gaps = _listed_launches(folder, status)
    done = {listed.index for listed in status.launches if listed.state == "done"} if status else set()
    size = sum(size_bytes(launch.rank(rank)) for launch in launches for rank in launch.ranks())
    count = cores() if size >= PROCESSES_BYTES and cores() > 1 else 0
    scratch = Scratch(folder.path)
    whole: dict[str, list[pl.DataFrame]] = {name: [] for name in OF_BLOCKS}
    parts: list[Part] = []
    ranks: list[RankFile] = []
    seen: list[R] = []
    lost = 0
    with Processes(count) as processes:
        kept = Copies(scratch.path / "copies" if count else None)
        for launch in launches:
            read = read_ranks(launch, plan, kept, processes)
            gaps += read.gaps
            ranks += read.files
            gaps += [
                Gap(launch=launch.index, rank=file.rank, what=what)
                for file in read.files
                for what in lacks(file, done)
            ]
            gaps += other_plan(folder, launch.index, read.files)
            for name, frame in read.tables.items():
                whole[name].append(frame)
            for part, more, looked in _read_steps(read, scratch.path, look, processes):
                parts.append(part)
                lost += more
                seen.append(looked)
        if kept.path is not None:
            kept.path.unlink(missing_ok=True)
    files = {
        name: write_rows(itertools.chain.from_iterable(map(_some_ranks, frames)), name, scratch)
        for name, frames in whole.items()
    }
    tables = EMPTY.having(
        {**{name: scan_rows(paths, name) for name, paths in files.items()}, **scan_parts(parts, scratch)},
        parts=tuple(parts),
        block_files=files["blocks"],
        scratch=scratch,
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=lost + sum(file.dropped_samples for file in ranks),
    )
    return tables, seen


def _some_ranks(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows of a launch in frames of RANKS ranks each."""
    several = rows.group_by(pl.col("rank") // RANKS, maintain_order=True)
    return [some for _, some in several]


def _read_steps(
    read: LaunchRanks, scratch: Path, look: Callable[[Tables], R], processes: Processes
) -> Iterator[tuple[Part, int, R]]:
    """All rows of a launch's steps, written to files a stretch at a time: as `_write_stretch` returns them."""
    least_known = max(read.files, key=lambda file: file.clock_bound_ns or 0, default=None)
    here = EMPTY.having({}, ranks=(least_known,) if least_known else ())
    given = (read.stretch.files, here, look)
    stretches = enumerate(read.stretch.parts(STRETCH_BYTES))
    if not processes.count:
        yield from (_write_stretch(given, stretch, scratch, k) for k, stretch in stretches)
        return
    tasks = ((given, replace(stretch, files={}), scratch, k) for k, stretch in stretches)
    yield from processes.each(_write_stretch, tasks)


def _write_stretch(given: _Given, stretch: Stretch, scratch: Path, number: int) -> tuple[Part, int, Any]:
    """The files of a stretch's rows, how many steps belong to none of its blocks, and what was seen of them.

    `given`: its ranks are the one whose clock is least known, which is all that is asked of them. `number`: the
    stretch's in the launch.
    """
    files, here, look = given
    frames, lost = replace(stretch, files=files).read()
    written = write_part(frames, scratch, stretch.launch, number)
    first, last = frames["blocks"]["block"][0], frames["blocks"]["block"][-1]
    part = Part(launch=stretch.launch, first=first, last=last, files=written)
    return part, lost, look(here.having({name: rows.lazy() for name, rows in frames.items()}))


def _listed_launches(folder: RunFolder, status: Status | None) -> tuple[list[LaunchFolder], list[Gap]]:
    """The launches that status.json knows, and what is said of the others. All where it knows none of them."""
    folders = folder.launches()
    listed = {entry.index for entry in status.launches} if status else set()
    if not listed:
        return folders, []
    if not any(launch.index in listed for launch in folders):
        what = "status.json does not know it, nor any other launch that is here; its records are used"
        return folders, [Gap(launch=launch.index, what=what) for launch in folders]
    what = "is left out, because status.json does not know it; it was copied here or made by another run"
    unknown = [Gap(launch=launch.index, what=what) for launch in folders if launch.index not in listed]
    return [launch for launch in folders if launch.index in listed], unknown
