"""Rank files to tables. Whole blocks only; what is cut off or missing is said, never filled in.

Absolute stamps come out on rank 0's clock: each rank's offset, measured before and after the
rounds, is interpolated in time and subtracted.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from scaling import codec
from scaling import plan as plans
from scaling.plan import Plan
from scaling.records import COLLECTIVE_FIELDS, FABRIC, SCHEMA, STEP_FIELDS
from scaling.store import LaunchFolder, RunFolder

TABLE_SCHEMA = "1"
"""Version of the derived tables, in each Parquet file's metadata."""

CUT_OFF = "left records that are cut off; whole blocks are used"

_BLOCK_KEYS = {
    "launch": pl.Int64,
    "rank": pl.Int64,
    "block": pl.Int64,
    "round": pl.Int64,
    "world_size": pl.Int64,
    "arm": pl.String,
    "detailed": pl.Boolean,
    "solo_rank": pl.Int64,
    "batch": pl.Int64,
}
_BLOCK_COLUMNS = {
    **_BLOCK_KEYS,
    "accumulation": pl.Int64,
    "lead_in": pl.Int64,
    "steps": pl.Int64,
    "make_ns": pl.Int64,
    "make_cpu_ns": pl.Int64,
    "begin_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cpu_ns": pl.Int64,
    "thread_cpu_ns": pl.Int64,
    "delayed_ns": pl.Int64,
    "case": pl.Int64,
    "peak_bytes": pl.Int64,
}
_STEP_COLUMNS = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64, "step": pl.Int64} | dict.fromkeys(
    STEP_FIELDS, pl.Int64
)
_BUCKET_COLUMNS = {"launch": pl.Int64, "rank": pl.Int64, "block": pl.Int64, "step": pl.Int64} | dict.fromkeys(
    COLLECTIVE_FIELDS, pl.Int64
)

_PARAMETER_COLUMNS = {**_BLOCK_KEYS, "index": pl.Int64, "bytes": pl.Int64, "ready_ns": pl.Int64}


_MEMORY_COLUMNS = {
    "launch": pl.Int64,
    "rank": pl.Int64,
    "block": pl.Int64,
    "host_bytes": pl.Int64,
    "device_bytes": pl.Int64,
}


class _Head(msgspec.Struct, tag_field="t", tag="head"):
    schema: int
    rank: int
    host: int
    hostname: str = ""
    launch: int = 0
    world: int = 0
    groups: dict[str, list[int]] = {}
    warmup: dict[str, int] = {}
    cores: int = 0
    fed_ns: dict[str, int] = {}
    plan: dict[str, Any] | None = None


class _Clock(msgspec.Struct, tag_field="t", tag="clock"):
    at: str
    offset_ns: int
    bound_ns: int
    time_ns: int


class _Step(msgspec.Struct, tag_field="t", tag="step"):
    b: int
    i: int
    s: list[int]
    c: list[list[int]] = []

    @property
    def whole(self) -> bool:
        """Whether every array has its length."""
        width = len(COLLECTIVE_FIELDS)
        return len(self.s) in (2, len(STEP_FIELDS) - 1, len(STEP_FIELDS)) and all(
            len(row) == width for row in self.c
        )


class _Block(msgspec.Struct, tag_field="t", tag="block"):
    id: int
    round: int
    world_size: int
    arm: str
    detailed: bool
    solo_rank: int
    batch: int
    accumulation: int
    lead_in: int
    steps: int
    begin_ns: int
    end_ns: int
    cpu_ns: int
    thread_cpu_ns: int
    delayed_ns: int
    case: int = -1
    peak_bytes: int = -1
    parameters: list[tuple[int, int]] = []
    make_ns: int = -1
    make_cpu_ns: int = -1


class _Memory(msgspec.Struct, tag_field="t", tag="memory"):
    b: int
    host_bytes: int
    device_bytes: int | None = None


class _Pause(msgspec.Struct, tag_field="t", tag="pause"):
    time_ns: int
    gap_ns: int


class _End(msgspec.Struct, tag_field="t", tag="end"):
    state: str
    steps: int = 0
    error: str = ""


_HEAD = msgspec.json.Decoder(_Head)
_LINE = msgspec.json.Decoder(_Clock | _Step | _Block | _Memory | _Pause | _End)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """What one rank left: its head, and whether its file ends in the middle of something."""

    launch: int
    rank: int
    world: int
    """Ranks of the launch; 0 where its head does not say."""
    host: int
    warmup: dict[int, int]
    cores: int
    """Of its host; 0 unknown."""
    fed_ns: dict[int, int]
    """By world size: what a fetch takes whose batch is ready; -1 without a loader."""
    clock_bound_ns: int | None
    clock_corrected: bool
    """Whether its stamps were moved onto rank 0's clock."""
    cut_off: bool
    ended: bool
    """Whether it came to the end of the launch: its clock was read a second time."""
    state: str | None = None
    """Own loops: `done` or `failed`; None where the file has no end line."""
    error: str = ""
    paused_ns: tuple[int, ...] = ()
    """Own loops: each stretch between two steps that was no input."""


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
    """Buckets of ddp_solo, probe and replay blocks."""
    fabric: pl.DataFrame
    """Messages of the size sweep."""
    parameters: pl.DataFrame
    """A row a ddp_solo block, rank and parameter in the order of registration: bytes, and when its gradient was
    ready, mean over the block's steps, since the step's begin. Empty on a device."""
    memory: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_MEMORY_COLUMNS))
    """What each rank held after each block."""
    ranks: tuple[RankFile, ...]
    gaps: tuple[Gap, ...]
    """What is missing."""
    dropped_samples: int
    """Steps that were written but belong to no whole block."""


def collect(folder: RunFolder, plan: Plan) -> Tables:
    """Read every launch of a run."""
    columns = _Columns()
    ranks: list[RankFile] = []
    gaps: list[Gap] = []
    for launch in folder.launches():
        world = plan.ranks
        for rank in range(plan.ranks):
            if rank >= world:
                break  # a launch of what was left has as many ranks as that needs
            try:
                file = _read(launch.rank(rank), launch, rank, columns)
            except FileNotFoundError:
                gaps.append(Gap(launch=launch.index, rank=rank, what="left no records"))
            except (msgspec.DecodeError, OSError, ValueError) as error:
                gaps.append(
                    Gap(launch=launch.index, rank=rank, what=f"left nothing that can be read: {error}")
                )
            else:
                ranks.append(file)
                world = file.world or world
                if file.cut_off:
                    gaps.append(Gap(launch=launch.index, rank=rank, what=CUT_OFF))
    blocks = pl.DataFrame(columns.blocks, schema=_BLOCK_COLUMNS, orient="row")
    steps = pl.DataFrame(columns.steps, schema=_STEP_COLUMNS, orient="row")
    buckets = pl.DataFrame(columns.buckets, schema=_BUCKET_COLUMNS, orient="row")
    key = blocks.select(list(_BLOCK_KEYS))
    kept = steps.join(key, on=["launch", "rank", "block"], how="inner")
    collectives = buckets.join(key, on=["launch", "rank", "block"], how="inner")
    return Tables(
        blocks=blocks,
        steps=kept,
        buckets=collectives.filter(pl.col("arm") != FABRIC),
        fabric=collectives.filter(pl.col("arm") == FABRIC),
        parameters=pl.DataFrame(columns.parameters, schema=_PARAMETER_COLUMNS, orient="row"),
        memory=pl.DataFrame(columns.memory, schema=_MEMORY_COLUMNS, orient="row"),
        ranks=tuple(ranks),
        gaps=tuple(gaps),
        dropped_samples=steps.height - kept.height,
    )


def own_plan(folder: RunFolder) -> Plan | None:
    """The plan that the heads of an own loop's rank files carry: that of the latest launch; None where none does."""
    for launch in reversed(folder.launches()):
        for path in sorted(launch.path.glob("rank-*.jsonl")):
            with contextlib.suppress(OSError, msgspec.DecodeError, ValueError), path.open("rb") as lines:
                head = _HEAD.decode(lines.readline())
                if head.plan is not None and head.plan.get("schema") == plans.SCHEMA:
                    return codec.decode(Plan, head.plan)
    return None


def write_tables(folder: RunFolder, tables: Tables) -> None:
    """The derived Parquet files, by rename."""
    for name in ("blocks", "steps", "buckets", "fabric", "parameters"):
        path = folder.table(name)
        part = path.with_name(f".{path.name}.part")
        getattr(tables, name).write_parquet(part, metadata={"schema": TABLE_SCHEMA})
        part.replace(path)


class _Columns:
    """Rows of all ranks, gathered before any table is made."""

    def __init__(self) -> None:
        self.blocks: list[tuple[Any, ...]] = []
        self.steps: list[tuple[Any, ...]] = []
        self.buckets: list[tuple[Any, ...]] = []
        self.parameters: list[tuple[Any, ...]] = []
        self.memory: list[tuple[Any, ...]] = []


def _read(path: Path, launch: LaunchFolder, rank: int, columns: _Columns) -> RankFile:
    """Read one rank's file up to its end, or to the first line that is not whole."""
    lines = path.read_bytes().split(b"\n")
    cut_off = lines.pop() != b""  # a whole file ends in a newline
    try:
        head = _HEAD.decode(lines[0] if lines else b"")
    except msgspec.DecodeError as error:
        raise ValueError("no head line; the file was cut off or damaged at its start") from error
    if head.schema != SCHEMA:
        raise ValueError(f"written in format {head.schema}, this version reads format {SCHEMA}")
    rest: list[_Clock | _Step | _Block | _Memory | _Pause | _End] = []
    for line in lines[1:]:
        try:
            record = _LINE.decode(line)
        except msgspec.DecodeError:
            cut_off = True
            break
        if isinstance(record, _Step) and not record.whole:
            cut_off = True
            break
        rest.append(record)
    clocks = [line for line in rest if isinstance(line, _Clock)]
    shift = _Shift(clocks)
    end = next((record for record in rest if isinstance(record, _End)), None)
    open_steps = 0
    for record in rest:
        if isinstance(record, _Step):
            open_steps += 1
            place = (launch.index, rank, record.b, record.i)
            columns.steps.append((*place, *shift.step(record.s)))
            columns.buckets.extend((*place, *shift.collective(row)) for row in record.c)
        elif isinstance(record, _Block):
            open_steps = 0
            values = (getattr(record, name) for name in list(_BLOCK_COLUMNS)[3:])
            columns.blocks.append((launch.index, rank, record.id, *values))
            key = columns.blocks[-1][: len(_BLOCK_KEYS)]
            columns.parameters.extend((*key, i, *each) for i, each in enumerate(record.parameters))
        elif isinstance(record, _Memory):
            columns.memory.append((launch.index, rank, record.b, record.host_bytes, record.device_bytes))
    return RankFile(
        launch=launch.index,
        rank=rank,
        world=head.world,
        host=head.host,
        warmup={int(n): steps for n, steps in head.warmup.items()},
        cores=head.cores,
        fed_ns={int(n): ns for n, ns in head.fed_ns.items()},
        clock_bound_ns=max((c.bound_ns for c in clocks), default=None),
        clock_corrected=not shift.still,
        cut_off=cut_off or open_steps > 0,
        ended=any(clock.at == "end" for clock in clocks),
        state=end.state if end else None,
        error=end.error if end else "",
        paused_ns=tuple(record.gap_ns for record in rest if isinstance(record, _Pause)),
    )


class _Shift:
    """One rank's stamps on rank 0's clock.

    An offset within its own bound is not one that was seen: namespaces and ranks of a host share
    a clock, and a correction would only add the measurement's error.
    """

    def __init__(self, clocks: list[_Clock]) -> None:
        self._clocks = clocks
        self.still = all(abs(c.offset_ns) <= c.bound_ns for c in clocks)

    def at(self, time_ns: int) -> int:
        """One stamp; 0 means "not taken" and stays."""
        if self.still or time_ns == 0:
            return time_ns
        first, last = self._clocks[0], self._clocks[-1]
        span = last.time_ns - first.time_ns
        share = 0.0 if span <= 0 else min(1.0, max(0.0, (time_ns - first.time_ns) / span))
        return time_ns - round(first.offset_ns + share * (last.offset_ns - first.offset_ns))

    def step(self, stamps: list[int]) -> list[int | None]:
        if len(stamps) == 2:  # a plain step
            return [self.at(stamps[0]), self.at(stamps[1]), *[None] * (len(STEP_FIELDS) - 2)]
        begin, end, fetch, forward, backward, optimizer, compute_end, sync_end, *earlier = stamps
        absolute = (self.at(compute_end), self.at(sync_end))
        return [
            self.at(begin),
            self.at(end),
            fetch,
            forward,
            backward,
            optimizer,
            *absolute,
            *(earlier or [0]),
        ]

    def collective(self, row: list[int]) -> list[int]:
        return [*row[:4], *(self.at(stamp) for stamp in row[4:])]
