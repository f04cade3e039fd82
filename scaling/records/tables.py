"""Rank files to tables. Only whole blocks count; what is cut off or missing is reported, never filled in.

Absolute stamps come out on rank 0's clock (scaling.records.rank). Tables of steps and collectives grow with the run.
Those of a large run are in files, which are read where something is asked of them: select blocks and columns first.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from scaling.reading import read_bytes
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.rank import SCHEMAS, RankFile, Stored, read_rank
from scaling.records.run import read_status
from scaling.records.seal import digest
from scaling.records.spill import TABLES, Frame, Growing, Part, in_memory, write_parquet
from scaling.records.status import Status
from scaling.records.window import Window, windows
from scaling.spec.plan import Plan

KEPT_BYTES = 256 << 20
"""So many bytes of a launch's files are kept until their steps are read; of larger ones parts are read again."""
CUT_OFF = "left records that are cut off; whole blocks are used"


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
            rows = pl.collect_all([getattr(self, name).lazy().filter(part.inside) for name in TABLES])
            frames = dict(zip(TABLES, rows, strict=True))
            yield self.having({"blocks": self.blocks.filter(part.inside), **frames}, parts=())

    def having(self, frames: Mapping[str, Frame], **changes: Any) -> Tables:
        """The same with other rows, by a table's name."""
        return dataclasses.replace(self, **{**changes, **frames})


def collect(folder: RunFolder, plan: Plan, look: Callable[[Tables], None] | None = None) -> Tables:
    """Read every launch of a run that status.json knows; all where there is none.

    `look` sees all rows, some blocks of a launch at a time, in memory, from a thread of its own beside the reading.
    OSError where the tables of a large run cannot be written to files.
    """
    found = {name: [pl.DataFrame(schema=SCHEMAS[name])] for name in _OF_BLOCKS}
    growing = Growing(folder.path)
    ranks: list[RankFile] = []
    status = None if plan.own_loop else read_status(folder)
    launches, gaps = _known(folder, status)
    done = {one.index for one in status.launches if one.state == "done"} if status else set()
    lost = 0
    for launch in launches:
        read, missing = _read(launch, plan)
        gaps += missing
        for of in read:
            ranks.append(of.file)
            gaps += [Gap(launch=launch.index, rank=of.file.rank, what=what) for what in _lacks(of.file, done)]
        gaps += _other_plan(folder, launch.index, [of.file for of in read])
        if not read:
            continue
        whole = {name: pl.concat([of.tables[name] for of in read]) for name in _OF_BLOCKS}
        for name, frame in whole.items():
            found[name].append(frame)
        here = _EMPTY.having(whole, ranks=tuple(of.file for of in read))
        lost += _keep(windows(launch.index, [of.stored for of in read], whole["blocks"]), here, growing, look)
    return _EMPTY.having(
        {**{name: pl.concat(frames) for name, frames in found.items()}, **growing.finish()},
        parts=tuple(growing.parts) if growing.scratch else (),
        scratch=growing.scratch,
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=lost + sum(file.dropped_samples for file in ranks),
    )


def _keep(
    found: Iterator[Window], here: Tables, growing: Growing, look: Callable[[Tables], None] | None
) -> int:
    """Keep the rows of a launch's windows, each while the next is read; how many steps belong to no block.

    `here`: the launch's blocks and ranks. Errors of a window are raised when the next one is there.
    """

    def kept(window: Window) -> int:
        part = Part(launch=window.launch, first=window.first, last=window.last)
        growing.add(part, window.frames)
        if look is not None:
            look(here.having({"blocks": here.blocks.filter(part.inside), **window.frames}))
        return window.lost

    with ThreadPoolExecutor(1) as beside:
        lost, before = 0, None
        for window in found:
            lost += before.result() if before else 0
            before = beside.submit(kept, window)
        return lost + (before.result() if before else 0)


_OF_BLOCKS = ("blocks", "memory")
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
            held.append(in_memory(getattr(run, name).with_columns(pl.col("launch") + first)))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """What is read of one rank's file before its steps."""

    file: RankFile
    tables: Mapping[str, pl.DataFrame]
    stored: Stored


def _read(launch: LaunchFolder, plan: Plan) -> tuple[list[_Rank], list[Gap]]:
    """The rank files of a launch, and the ranks that have none."""
    files: dict[int, _Rank] = {}
    broken: dict[int, str] = {}
    held = 0
    for rank in launch.ranks():
        try:
            file, tables, stored = read_rank(launch.rank(rank), launch.index, rank)
        except (OSError, ValueError) as error:
            broken[rank] = f"left nothing that can be read: {error}"
            continue
        held += len(stored.text or b"")
        if held > KEPT_BYTES:
            stored = dataclasses.replace(stored, text=None)
        files[rank] = _Rank(file=file, tables=tables, stored=stored)
    # A later launch has only as many ranks as the trials that were left need.
    said = Counter(of.file.world for of in files.values() if of.file.world)
    world = said.most_common(1)[0][0] if said else plan.ranks
    world = min(world, max(plan.ranks, len(files) + len(broken)))
    for rank in [rank for rank in files if rank >= world]:
        del files[rank]
        broken[rank] = f"is none of the launch's {world} ranks, so its records are left out"
    broken |= {rank: "left no records" for rank in range(world) if rank not in files and rank not in broken}
    gaps = [Gap(launch=launch.index, rank=rank, what=what) for rank, what in sorted(broken.items())]
    return list(files.values()), gaps


def _lacks(file: RankFile, done: Collection[int]) -> list[str]:
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


def _other_plan(folder: RunFolder, launch: int, files: Sequence[RankFile]) -> list[Gap]:
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


def write_tables(folder: RunFolder, tables: Tables) -> None:
    """Write the derived Parquet files, by rename. OSError where that fails."""
    for name in ("blocks", *TABLES):
        path = folder.table(name)
        part = path.with_name(f".{path.name}.part")
        try:
            write_parquet(getattr(tables, name), part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
