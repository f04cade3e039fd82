"""Rank files to tables: all files of a launch, then their steps, in other processes where they are large."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import polars as pl

from scaling.reading import read_bytes
from scaling.records.decode import Gap, RankFile
from scaling.records.encoding import digest
from scaling.records.paths import LaunchFolder, RunFolder, is_own
from scaling.records.processes import Processes, cores
from scaling.records.rank_file import Rank, read_rank
from scaling.records.run import Status, read_status
from scaling.records.steps import Stored, Stretch
from scaling.records.tables import (
    EMPTY,
    LINE_SPAN,
    OF_BLOCKS,
    Part,
    Tables,
    scan_parts,
    scan_rows,
    scratch_folder,
    write_part,
    write_rows,
)
from scaling.settings.plan import Plan
from scaling.units import few

SHARE_BYTES = 16 << 20
"""Rank files that a process reads at a time have about so many bytes together."""
CUT_OFF = "left records that are cut off; whole blocks are used"


class RankFiles(NamedTuple):
    """What some ranks of a launch left."""

    files: list[RankFile]
    stored: dict[int, Stored]
    """Where their steps lie, by rank."""
    tables: dict[str, pl.DataFrame]
    """Their rows of tables.OF_BLOCKS, those of a rank after each other."""
    broken: dict[int, str]
    """Why a file cannot be used, by rank."""


def size_bytes(path: Path) -> int:
    """Size of a file; 0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_ranks(launch: LaunchFolder, plan: Plan, copies: Path | None, processes: Processes) -> RankFiles:
    """What all ranks of a launch left. `copies`: a folder for their lines; None: they are read where they are."""
    shares: list[dict[int, Path]] = []
    full_bytes = SHARE_BYTES
    for rank in launch.ranks():
        if full_bytes >= SHARE_BYTES:
            shares.append({})
            full_bytes = 0
        path = shares[-1][rank] = launch.rank(rank)
        full_bytes += size_bytes(path)
    tasks = [(launch.index, paths, copies and copies / str(k)) for k, paths in enumerate(shares)]
    files: list[RankFile] = []
    stored: dict[int, Stored] = {}
    broken: dict[int, str] = {}
    several = []
    for share in processes.each(read_share, tasks):
        files += share.files
        stored |= share.stored
        broken |= share.broken
        several.append(share.tables)
    _intern(files)
    tables = _joined(several)
    # A later launch has only as many ranks as the trials that were left need.
    worlds = Counter(file.world for file in files if file.world)
    world = worlds.most_common(1)[0][0] if worlds else plan.ranks
    world = min(world, max(plan.ranks, len(files) + len(broken)))
    if any(file.rank >= world for file in files):
        why = f"is none of the launch's {world} ranks, so its records are left out"
        broken |= {file.rank: why for file in files if file.rank >= world}
        files = [file for file in files if file.rank < world]
        tables = {name: frame.filter(pl.col("rank") < world) for name, frame in tables.items()}
    present = {file.rank for file in files} | broken.keys()
    broken |= {rank: "left no records" for rank in range(world) if rank not in present}
    return RankFiles(files, stored, tables, broken)


def read_share(launch: int, paths: Mapping[int, Path], copy: Path | None) -> RankFiles:
    """Read some files of a launch; `paths`: by rank. OSError where `copy` cannot be written.

    The lines of their blocks go to the file `copy`, block after block: those of a stretch lie together there, and each
    file is opened once. Without `copy` they are read again from where they are.
    """
    ranks: dict[int, Rank] = {}
    broken: dict[int, str] = {}
    for rank, path in paths.items():
        try:
            ranks[rank] = read_rank(path, launch, rank)
        except (OSError, ValueError) as error:
            broken[rank] = f"left nothing that can be read: {error}"
    files = [rank.file for rank in ranks.values()]
    _intern(files)
    tables = _joined([rank.tables for rank in ranks.values()])
    if copy is None:
        stored = {number: Stored(paths[number], rank.shift) for number, rank in ranks.items()}
        return RankFiles(files, stored, tables, broken)
    size = pl.col("lines_end") - pl.col("lines_begin")
    blocks = tables["blocks"].with_row_index("at").sort("block", "rank")
    # By rename: a process that was given up may still write the same.
    mine = copy.with_name(f"{copy.name}.{os.getpid()}")
    with mine.open("wb") as file:
        for rank, begin, end in blocks.select("rank", *LINE_SPAN).iter_rows():
            file.write(ranks[rank].text[begin:end])
    mine.replace(copy)
    blocks = blocks.with_columns(lines_begin=size.cum_sum() - size, lines_end=size.cum_sum())
    return RankFiles(
        files=files,
        stored={number: Stored(copy, rank.shift) for number, rank in ranks.items()},
        tables=tables | {"blocks": blocks.sort("at").drop("at")},
        broken=broken,
    )


def _joined(several: Sequence[Mapping[str, pl.DataFrame]]) -> dict[str, pl.DataFrame]:
    """The rows of several ranks or shares, by a table's name."""
    return {
        name: pl.concat([pl.DataFrame(schema=schema), *(tables[name] for tables in several)])
        for name, schema in OF_BLOCKS.items()
    }


def _intern(files: Iterable[RankFile]) -> None:
    """Every rank of a group names all its ranks: let all have one tuple of them in memory."""
    interned: dict[tuple[int, ...], tuple[int, ...]] = {}
    for file in files:
        for key, ranks in file.groups.items():
            file.groups[key] = interned.setdefault(ranks, ranks)


def lacks(file: RankFile, done: Collection[int]) -> list[str]:
    """What is missing from a file. `done`: launches that status.json calls done."""
    reasons = []
    if file.damaged:
        reasons.append(
            f"left records that changed after they were written (their checksums do not hold): "
            f"{few(file.damaged, 4)}, left out"
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


PROCESSES_BYTES = 32 << 20
"""From so many bytes of rank files on, about two million rows, other processes read them."""
STRETCH_BYTES = 8 << 20
"""What a process reads of them at a time, some 400,000 rows (70 MB of columns), or the lines of one block."""

RANKS = 512
"""Ranks whose blocks are in one file."""

R = TypeVar("R")


def collect(folder: RunFolder, plan: Plan, look: Callable[[Tables], R]) -> tuple[Tables, list[R]]:
    """The tables, and what `look` returns for all rows of some whole blocks at a time, while they are in memory.

    Every launch that status.json knows is read; all where there is none. `look` can go to other processes.
    OSError where the tables, and meanwhile a copy of a launch's rank files, cannot be written: in the run's folder or,
    if that is read-only, elsewhere.
    """
    status = None if plan.kind.followed else read_status(folder)
    launches, gaps = _listed_launches(folder, status)
    done = {listed.index for listed in status.launches if listed.state == "done"} if status else set()
    size = sum(size_bytes(launch.rank(rank)) for launch in launches for rank in launch.ranks())
    count = cores() if size >= PROCESSES_BYTES and cores() > 1 else 0
    scratch = scratch_folder(folder)
    path = Path(scratch.name)
    whole: dict[str, list[pl.DataFrame]] = {name: [] for name in OF_BLOCKS}
    parts: list[Part] = []
    ranks: list[RankFile] = []
    seen: list[R] = []
    lost = 0
    with Processes(count) as processes:
        for launch in launches:
            # After an error other processes may still write there; what is left goes with `scratch`.
            with TemporaryDirectory(dir=path, ignore_cleanup_errors=True) as copies:
                # Another user's run would have its copy in the system's temporary folder, which may be memory.
                read = read_ranks(launch, plan, Path(copies) if is_own(folder) else None, processes)
                for part, more, looked in _read_steps(launch.index, read, path, look, processes):
                    parts.append(part)
                    lost += more
                    seen.append(looked)
            ranks += read.files
            missing = [*sorted(read.broken.items())]
            missing += [(file.rank, what) for file in read.files for what in lacks(file, done)]
            gaps += [Gap(launch=launch.index, rank=rank, what=what) for rank, what in missing]
            gaps += other_plan(folder, launch.index, read.files)
            for name, frame in read.tables.items():
                whole[name].append(frame.drop(LINE_SPAN, strict=False))
    files = {name: write_rows(_by_ranks(frames), name, path) for name, frames in whole.items()}
    tables = EMPTY.having(
        {**{name: scan_rows(paths, name) for name, paths in files.items()}, **scan_parts(parts, path)},
        parts=tuple(parts),
        block_files=files["blocks"],
        scratch=scratch,
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=lost + sum(file.dropped_samples for file in ranks),
    )
    return tables, seen


def _by_ranks(launches: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """The rows of each launch in frames of RANKS ranks each."""
    for rows in launches:
        yield from (some for _, some in rows.group_by(pl.col("rank") // RANKS, maintain_order=True))


def _read_steps(
    launch: int, read: RankFiles, scratch: Path, look: Callable[[Tables], R], processes: Processes
) -> Iterator[tuple[Part, int, R]]:
    """All rows of a launch's steps, written to files a stretch at a time: as `_write_stretch` returns them."""
    least_known = max(read.files, key=lambda file: file.clock_bound_ns or 0, default=None)
    clocks = (least_known,) if least_known else ()
    stretches = Stretch(launch=launch, blocks=read.tables["blocks"], files=read.stored).parts(STRETCH_BYTES)
    tasks = ((stretch, scratch, k, clocks, look) for k, stretch in enumerate(stretches))
    yield from processes.each(_write_stretch, tasks)


def _write_stretch(
    stretch: Stretch, scratch: Path, number: int, clocks: tuple[RankFile, ...], look: Callable[[Tables], R]
) -> tuple[Part, int, R]:
    """The files of a stretch's rows, how many steps belong to none of its blocks, and what was seen of them.

    `clocks`: the rank whose clock is least known, which is all that is asked of ranks. `number`: the stretch's in the
    launch. No lazy table goes to another process: polars ends with SIGSEGV where it packs one in a thread.
    """
    frames, lost = stretch.read()
    written = write_part(frames, scratch, stretch.launch, number)
    first, last = frames["blocks"]["block"][0], frames["blocks"]["block"][-1]
    part = Part(launch=stretch.launch, first=first, last=last, files=written)
    return part, lost, look(EMPTY.having({name: rows.lazy() for name, rows in frames.items()}, ranks=clocks))


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
