"""Rank files to tables: some blocks of all ranks of a launch at a time, in other processes where they are large."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Generic, TypeVar

import polars as pl

from scaling.records.columns import OF_BLOCKS, SCHEMAS
from scaling.records.frames import Frame, one_frame
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.pile import Scratch
from scaling.records.processes import Processes, cores
from scaling.records.rank import RankFile, Stored
from scaling.records.ranks import Gap, Kept, Ranks, lacks, other_plan, read_ranks, size_bytes
from scaling.records.run import read_status
from scaling.records.spill import Growing, Part, part_name, write_frames
from scaling.records.status import Status
from scaling.records.tables import EMPTY, Tables
from scaling.records.window import Stretch, Window, wholes, windows
from scaling.spec.plan import Plan

PROCESSES_BYTES = 32 << 20
"""From so many bytes of rank files on, about two million rows, other processes read them."""
STRETCH_BYTES = 10 << 20
"""What a process reads of them at a time, some 500,000 rows."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Look(Generic[R]):
    """What looks at all rows while they are read, some blocks of a launch at a time."""

    at: Callable[[Iterator[Tables]], R]
    """Looks at all rows of whole blocks, in memory, some ranks at a time; it can go to another process."""
    note: Callable[[R], None]
    """Keeps what was seen."""


def collect(folder: RunFolder, plan: Plan, look: Look[R] | None = None) -> Tables:
    """Read every launch of a run that status.json knows; all where there is none.

    OSError where the tables of a large run cannot be written to files.
    """
    status = None if plan.own_loop else read_status(folder)
    launches, gaps = _known(folder, status)
    done = {one.index for one in status.launches if one.state == "done"} if status else set()
    size = sum(size_bytes(launch.rank(rank)) for launch in launches for rank in launch.ranks())
    count = cores() if size >= PROCESSES_BYTES and cores() > 1 else 0
    found: dict[str, list[Frame]] = {name: [pl.DataFrame(schema=SCHEMAS[name])] for name in OF_BLOCKS}
    scratch = Scratch(folder.path)
    growing = Growing(scratch)
    ranks: list[RankFile] = []
    lost = 0
    with ExitStack() as open_:
        kept = Kept(open_.enter_context(TemporaryFile()).fileno()) if count else Kept()
        processes = open_.enter_context(
            Processes(count, [] if kept.descriptor is None else [kept.descriptor])
        )
        for launch in launches:
            read = read_ranks(launch, plan, kept, processes, scratch)
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
                growing.parts.append(part.part)
                lost += part.lost
                if look is not None and part.seen is not None:
                    look.note(part.seen)
    return EMPTY.having(
        {**{name: one_frame(frames) for name, frames in found.items()}, **growing.finish()},
        parts=tuple(growing.parts) if growing.in_files else (),
        files=growing.files,
        scratch=scratch if scratch.kept else None,
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=lost + sum(file.dropped_samples for file in ranks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(Generic[R]):
    """A part that was read."""

    part: Part
    files: Sequence[Mapping[str, Path]] = ()
    """Its rows, by a table's name, where they went to files at once."""
    lost: int
    """Steps that belong to none of its blocks."""
    seen: R | None


def _parts(read: Ranks, growing: Growing, look: Look[R] | None, processes: Processes) -> Iterator[_Read[R]]:
    """Keep all rows of a launch, a part at a time."""
    most = max(read.files, key=lambda file: file.clock_bound_ns or 0, default=None)
    here = EMPTY.having({}, ranks=(most,) if most else ())
    looked, stretches = look.at if look else None, read.stretch.parts(STRETCH_BYTES)
    if not processes.pids:
        for stretch in stretches:
            for whole in wholes(windows(stretch)):
                yield _seen(here, stretch.launch, whole, growing.add, looked)
        return
    scratch = growing.to_files()
    # the files of all ranks would go there with each task
    tasks = ((dataclasses.replace(one, files={}), scratch, k) for k, one in enumerate(stretches))
    for several in processes.each(_to_files, tasks, (read.stretch.files, here, looked)):
        for one in several:
            for files in one.files:
                growing.took(files)
            yield one


def _to_files(
    files: Mapping[int, Stored],
    here: Tables,
    look: Callable[[Iterator[Tables]], R] | None,
    stretch: Stretch,
    scratch: Path,
    at: int,
) -> list[_Read[R]]:
    """Write the rows of a stretch of the blocks in `files` to files; `at`: its number in the launch."""
    found, written = list[_Read[R]](), list[Mapping[str, Path]]()

    def keep(frames: Mapping[str, pl.DataFrame]) -> None:
        number = sum(len(one.files) for one in found) + len(written)
        written.append(write_frames(frames, scratch, part_name(stretch.launch, at, number)))

    for whole in wholes(windows(dataclasses.replace(stretch, files=files))):
        seen = _seen(here, stretch.launch, whole, keep, look)
        found.append(dataclasses.replace(seen, files=tuple(written)))
        written.clear()
    return found


def _seen(
    here: Tables,
    launch: int,
    whole: Iterator[Window],
    keep: Callable[[Mapping[str, pl.DataFrame]], None],
    look: Callable[[Iterator[Tables]], R] | None,
) -> _Read[R]:
    """Keep the windows of some whole blocks, and look at each while it is in memory.

    `here`: the rank of the launch whose clock is least known, which is all that is asked of the ranks.
    """
    numbers, lost = list[int](), 0

    def pieces() -> Iterator[Tables]:
        nonlocal lost
        for window in whole:
            keep(window.frames)
            numbers.extend((window.first, window.last))
            lost += window.lost
            yield here.having(window.frames)

    seen = look(pieces()) if look is not None else None
    for _ in pieces():  # those that nobody looked at
        pass
    part = Part(launch=launch, first=min(numbers), last=max(numbers))
    return _Read(part=part, lost=lost, seen=seen)


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
