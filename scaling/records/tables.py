"""Rank files to tables. Only whole blocks count; what is cut off or missing is reported, never filled in.

Absolute stamps come out on rank 0's clock (scaling.records.rank). Tables of steps and collectives grow with the run.
Those of a large run are in files, which are read where something is asked of them: select blocks and columns first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any, Generic, Protocol, TypeVar

import polars as pl

from scaling.records.columns import SCHEMAS
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.processes import Processes, cores
from scaling.records.rank import RankFile, Stored
from scaling.records.ranks import OF_BLOCKS, Gap, Kept, Ranks, lacks, other_plan, read_ranks, size_bytes
from scaling.records.row_groups import append_files
from scaling.records.run import read_status
from scaling.records.spill import (
    PART,
    TABLES,
    Frame,
    Growing,
    Part,
    in_memory,
    part_name,
    write_frames,
    write_parquet,
)
from scaling.records.status import Status
from scaling.records.window import Stretch, Window, windows
from scaling.spec.plan import Plan

PROCESSES_BYTES = 32 << 20
"""From so many bytes of rank files on, about two million rows, other processes read them."""
STRETCH_BYTES = 10 << 20
"""What a process reads of them at a time, some 500,000 rows."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """All records of a run: a row for each block and rank, each step and rank, each collective and rank."""

    blocks: pl.DataFrame
    steps: Frame
    buckets: Frame
    """Collectives in ddp_solo, probe, replay and pairs blocks."""
    fabric: Frame
    """Messages in the size sweep."""
    parameters: Frame
    """A row for each ddp_solo block, rank and parameter, in the order of registration: bytes, and when its gradient was
    ready since the step's begin, as the mean over the block's steps. Empty on a device."""
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=SCHEMAS["memory"]))
    """What each rank held after each block."""
    ranks: tuple[RankFile, ...]
    gaps: tuple[Gap, ...]
    """What is missing."""
    dropped_samples: int
    """Steps that were written and belong to no whole block, or to one that was left out."""
    dropped_blocks: int = 0
    """Blocks that are missing, or were left out on all ranks because what they say cannot be."""
    parts: tuple[Part, ...] = ()
    """Stretches of blocks whose rows fit into memory; none where all rows are there."""
    files: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)
    """Parquet files with all rows of a table one after the other, by its name; only while none of them was left out."""
    scratch: TemporaryDirectory[str] | None = None
    """Keeps the files while the tables are used."""

    @property
    def empty(self) -> bool:
        """Whether no step was recorded."""
        return in_memory(self.steps.select("launch").head(1)).is_empty()

    def by_part(self) -> Iterator[Tables]:
        """The tables of a few blocks at a time, in memory."""
        if not self.parts:
            yield self
        for part in self.parts:
            tables = [getattr(self, name).lazy().filter(part.inside) for name in TABLES]
            rows = pl.collect_all([frame.drop(PART, strict=False) for frame in tables])
            frames = dict(zip(TABLES, rows, strict=True))
            yield self.having({"blocks": self.blocks.filter(part.inside), **frames}, parts=())

    def having(self, frames: Mapping[str, Frame], **changes: Any) -> Tables:
        """The same with other rows, by a table's name."""
        files = {name: paths for name, paths in self.files.items() if name not in frames}
        return dataclasses.replace(self, **{"files": files, **changes, **frames})


class Look(Protocol[R]):
    """What looks at all rows while they are read, some blocks of a launch at a time."""

    @property
    def at(self) -> Callable[[Tables], R]:
        """Looks at whole blocks with all their rows, in memory; it can go to another process."""

    def note(self, seen: R) -> None:
        """Keep what was seen."""


def collect(folder: RunFolder, plan: Plan, look: Look[R] | None = None) -> Tables:
    """Read every launch of a run that status.json knows; all where there is none.

    OSError where the tables of a large run cannot be written to files.
    """
    status = None if plan.own_loop else read_status(folder)
    launches, gaps = _known(folder, status)
    done = {one.index for one in status.launches if one.state == "done"} if status else set()
    size = sum(size_bytes(launch.rank(rank)) for launch in launches for rank in launch.ranks())
    count = cores() if size >= PROCESSES_BYTES and cores() > 1 else 0
    found = {name: [pl.DataFrame(schema=SCHEMAS[name])] for name in OF_BLOCKS}
    growing = Growing(folder.path)
    ranks: list[RankFile] = []
    lost = 0
    with ExitStack() as open_:
        kept = Kept(open_.enter_context(TemporaryFile()).fileno()) if count else Kept()
        processes = open_.enter_context(
            Processes(count, [] if kept.descriptor is None else [kept.descriptor])
        )
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
                found[name].append(frame)
            for part in _parts(read, growing, look, processes):
                lost += part.lost
                if look is not None and part.seen is not None:
                    look.note(part.seen)
    return _EMPTY.having(
        {**{name: pl.concat(frames) for name, frames in found.items()}, **growing.finish()},
        parts=tuple(growing.parts) if growing.scratch else (),
        files=growing.files,
        scratch=growing.scratch,
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=lost + sum(file.dropped_samples for file in ranks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(Generic[R]):
    """A part that was read."""

    part: Part
    files: Mapping[str, Path]
    """Its rows, by a table's name, where they went to files at once."""
    lost: int
    """Steps that belong to none of its blocks."""
    seen: R | None


def _parts(read: Ranks, growing: Growing, look: Look[R] | None, processes: Processes) -> Iterator[_Read[R]]:
    """Keep all rows of a launch, a part at a time."""
    most = max(read.files, key=lambda file: file.clock_bound_ns or 0, default=None)
    here = _EMPTY.having({}, ranks=(most,) if most else ())
    looked = look.at if look else None
    if not processes.pids:
        for window in windows(read.stretch):
            part = Part(launch=window.launch, first=window.first, last=window.last)
            growing.add(part, window.frames)
            yield _Read(part=part, files={}, lost=window.lost, seen=_seen(here, read.stretch, window, looked))
        return
    scratch = Path(growing.to_files())
    whole = dataclasses.replace(
        read.stretch, files=()
    )  # the files of all ranks would go there with each task
    tasks = ((stretch, scratch, k) for k, stretch in enumerate(whole.parts(STRETCH_BYTES)))
    for several in processes.each(_to_files, tasks, (read.stretch.files, here, looked)):
        for one in several:
            growing.took(one.part, one.files)
            yield one


def _to_files(
    files: tuple[Stored, ...],
    here: Tables,
    look: Callable[[Tables], R] | None,
    stretch: Stretch,
    scratch: Path,
    at: int,
) -> list[_Read[R]]:
    """Write the rows of a stretch of the blocks in `files` to files; `at`: its number in the launch."""
    found, stretch = [], dataclasses.replace(stretch, files=files)
    for number, window in enumerate(windows(stretch)):
        part = Part(launch=window.launch, first=window.first, last=window.last)
        written = write_frames(window.frames, scratch, part_name(stretch.launch, at, number))
        found.append(
            _Read(part=part, files=written, lost=window.lost, seen=_seen(here, stretch, window, look))
        )
    return found


def _seen(here: Tables, stretch: Stretch, window: Window, look: Callable[[Tables], R] | None) -> R | None:
    """`here`: the rank of the launch whose clock is least known, which is all that is asked of the ranks."""
    if look is None:
        return None
    inside = pl.col("block").is_between(window.first, window.last)
    return look(here.having({"blocks": stretch.blocks.filter(inside), **window.frames}))


_EMPTY = Tables(
    blocks=pl.DataFrame(schema=SCHEMAS["blocks"]),
    steps=pl.DataFrame(schema=SCHEMAS["steps"]),
    buckets=pl.DataFrame(schema=SCHEMAS["buckets"]),
    fabric=pl.DataFrame(schema=SCHEMAS["fabric"]),
    parameters=pl.DataFrame(schema=SCHEMAS["parameters"]),
    ranks=(),
    gaps=(),
    dropped_samples=0,
)


def joined(runs: Sequence[Tables]) -> Tables:
    """The records of several runs as those of one, whose launches are numbered on."""
    first = 0
    frames: dict[str, list[pl.DataFrame]] = {name: [] for name in SCHEMAS}
    ranks: list[RankFile] = []
    for run in runs:
        for name, held in frames.items():
            rows = getattr(run, name).drop(PART, strict=False)
            held.append(in_memory(rows.with_columns(pl.col("launch") + first)))
        ranks += [dataclasses.replace(rank, launch=rank.launch + first) for rank in run.ranks]
        first = max((rank.launch for rank in ranks), default=-1) + 1
    return _EMPTY.having(
        {name: pl.concat(held, how="diagonal") for name, held in frames.items()},
        ranks=tuple(ranks),
        gaps=tuple(gap for run in runs for gap in run.gaps),
        dropped_samples=sum(run.dropped_samples for run in runs),
        dropped_blocks=sum(run.dropped_blocks for run in runs),
    )


def _known(folder: RunFolder, status: Status | None) -> tuple[list[LaunchFolder], list[Gap]]:
    """The launches that status.json knows, and what is said of the others. All where it knows none of them."""
    there = folder.launches()
    known = {one.index for one in status.launches} if status else set()
    if not known:
        return there, []
    if not any(launch.index in known for launch in there):
        what = "status.json does not know it, nor any other launch that is here; its records are used"
        return there, [Gap(launch=launch.index, what=what) for launch in there]
    what = "is left out, because status.json does not know it; it was copied here or made by another run"
    unknown = [Gap(launch=launch.index, what=what) for launch in there if launch.index not in known]
    return [launch for launch in there if launch.index in known], unknown


def write_tables(folder: RunFolder, tables: Tables) -> None:
    """Write the derived Parquet files, by rename. OSError where that fails."""
    for name in ("blocks", *TABLES):
        path = folder.table(name)
        part = path.with_name(f".{path.name}.part")
        try:
            if name in tables.files:
                append_files(tables.files[name], part)
            else:
                write_parquet(getattr(tables, name).drop(PART, strict=False), part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
