"""Rank files to tables: some blocks of all ranks of a launch at a time, in other processes where they are large."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import polars as pl

from scaling.records.columns import OF_BLOCKS
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.processes import Processes, cores
from scaling.records.rank import RankFile, Stored
from scaling.records.ranks import Gap, Kept, Ranks, lacks, other_plan, read_ranks, size_bytes
from scaling.records.run import read_status
from scaling.records.status import Status
from scaling.records.tables import EMPTY, Part, Scratch, Tables, scan_parts, scan_rows, write_part, write_rows
from scaling.records.window import Stretch, Window, wholes, windows
from scaling.spec.plan import Plan

PROCESSES_BYTES = 32 << 20
"""From so many bytes of rank files on, about two million rows, other processes read them."""
STRETCH_BYTES = 10 << 20
"""What a process reads of them at a time, some 500,000 rows."""

RANKS = 512
"""Ranks whose blocks are in one file."""

R = TypeVar("R")
_Given = tuple[Mapping[int, Stored], Tables, Callable[[Iterator[Tables]], Any] | None]
"""What all stretches of a launch need: its files, its ranks, and who looks."""


@dataclass(frozen=True, slots=True)
class Look(Generic[R]):
    """What looks at all rows while they are read, some blocks of a launch at a time."""

    at: Callable[[Iterator[Tables]], R]
    """Looks at all rows of whole blocks, in memory, some ranks at a time; it can go to another process."""
    note: Callable[[R], None]
    """Keeps what was seen."""


def collect(folder: RunFolder, plan: Plan, look: Look[R] | None = None) -> Tables:
    """Read every launch of a run that status.json knows; all where there is none.

    OSError where the tables cannot be written to files, in the run's folder or, if that is read-only, elsewhere.
    """
    status = None if plan.own_loop else read_status(folder)
    launches, gaps = _known(folder, status)
    done = {one.index for one in status.launches if one.state == "done"} if status else set()
    size = sum(size_bytes(launch.rank(rank)) for launch in launches for rank in launch.ranks())
    count = cores() if size >= PROCESSES_BYTES and cores() > 1 else 0
    scratch = Scratch(folder.path)
    whole: dict[str, list[pl.DataFrame]] = {name: [] for name in OF_BLOCKS}
    parts: list[Part] = []
    ranks: list[RankFile] = []
    lost = 0
    with Processes(count) as processes:
        kept = Kept(scratch.path / "copies" if count else None)
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
            for several in _read_steps(read, scratch.path, look, processes):
                for one in several:
                    parts.append(one.part)
                    lost += one.lost
                    if look is not None and one.seen is not None:
                        look.note(one.seen)
        if kept.path is not None:
            kept.path.unlink(missing_ok=True)
    files = {
        name: write_rows(itertools.chain.from_iterable(map(_some_ranks, frames)), name, scratch)
        for name, frames in whole.items()
    }
    return EMPTY.having(
        {**{name: scan_rows(of, name) for name, of in files.items()}, **scan_parts(parts, scratch)},
        parts=tuple(parts),
        block_files=files["blocks"],
        scratch=scratch,
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=lost + sum(file.dropped_samples for file in ranks),
    )


def _some_ranks(rows: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows of a launch in frames of RANKS ranks each."""
    several = rows.group_by(pl.col("rank") // RANKS, maintain_order=True)
    return [some for _, some in several]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read(Generic[R]):
    """A part that was read."""

    part: Part
    lost: int
    """Steps that belong to none of its blocks."""
    seen: R | None


def _read_steps(
    read: Ranks, scratch: Path, look: Look[R] | None, processes: Processes
) -> Iterator[list[_Read[R]]]:
    """All rows of a launch's steps, written to files a part at a time."""
    least_known = max(read.files, key=lambda file: file.clock_bound_ns or 0, default=None)
    here = EMPTY.having({}, ranks=(least_known,) if least_known else ())
    given = (read.stretch.files, here, look.at if look else None)
    stretches = enumerate(read.stretch.parts(STRETCH_BYTES))
    if not processes.count:
        yield from (_write_stretch(given, stretch, scratch, k) for k, stretch in stretches)
        return
    path = (
        scratch / f"files-{read.stretch.launch}"
    )  # of thousands of ranks; they do not go there with each task
    path.write_bytes(pickle.dumps(given))
    tasks = ((path, dataclasses.replace(stretch, files={}), scratch, k) for k, stretch in stretches)
    yield from processes.each(_write_stretch_there, tasks)
    path.unlink()


def _write_stretch_there(path: Path, stretch: Stretch, scratch: Path, number: int) -> list[_Read[Any]]:
    return _write_stretch(_given(path), stretch, scratch, number)


@lru_cache(1)
def _given(path: Path) -> _Given:
    given: _Given = pickle.loads(path.read_bytes())  # noqa: S301  this program wrote it, in a folder of its own
    return given


def _write_stretch(given: _Given, stretch: Stretch, scratch: Path, number: int) -> list[_Read[Any]]:
    """Write the rows of a stretch of blocks to files; `number`: the stretch's in the launch."""
    files, here, look = given
    several: list[_Read[Any]] = []
    for whole in wholes(windows(dataclasses.replace(stretch, files=files))):
        several.append(_write_blocks(here, whole, look, scratch, (stretch.launch, number, len(several))))
    return several


def _write_blocks(
    here: Tables,
    whole: Iterator[Window],
    look: Callable[[Iterator[Tables]], R] | None,
    scratch: Path,
    numbers: tuple[int, ...],
) -> _Read[R]:
    """Write the windows of some whole blocks as the part with these numbers, and look at each while it is in memory.

    `here`: the rank of the launch whose clock is least known, which is all that is asked of the ranks.
    """
    blocks, lost, files = list[int](), 0, dict[str, tuple[Path, ...]]()

    def pieces() -> Iterator[Tables]:
        nonlocal lost
        for window in whole:
            written = write_part(window.frames, scratch, *numbers, len(blocks))
            for name, path in written.items():
                files[name] = (*files.get(name, ()), path)
            blocks.extend((window.first, window.last))
            lost += window.lost
            yield here.having({name: frame.lazy() for name, frame in window.frames.items()})

    seen = look(pieces()) if look is not None else None
    for _ in pieces():  # those that nobody looked at
        pass
    part = Part(launch=numbers[0], first=min(blocks), last=max(blocks), files=files)
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
