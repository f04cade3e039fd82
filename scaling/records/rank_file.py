"""One rank's file, from JSON to records: what it says of itself and of its blocks, and where each block's steps lie.

The steps themselves are read later, a few blocks of all ranks at a time (records.steps). Absolute stamps come out on
rank 0's clock (`Shift`). Blocks also keep their times on their own host's clock, because other samples of that
host (telemetry) carry it. What changed after it was written is left out, and named.

Between two comparisons of its clock with rank 0's the offset is interpolated. Before the first and after the last one
it continues at the rate of the nearest stretch that is long enough. Each comparison has an error up to its own bound,
so over a short stretch the rate would be mostly error.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.reading import RECORDS_BYTES_MAX, read_bytes
from scaling.records.decode import (
    Block,
    Clock,
    End,
    Memory,
    Packed,
    Pause,
    RankFile,
    decode_head,
    decode_records,
)
from scaling.records.encoding import stretches
from scaling.records.format import SCHEMA, ClockRecord, HeadRecord, PauseRecord, Record
from scaling.records.tables import BLOCK_COLUMNS, HOST_TIMES, LINE_SPAN, MEMORY_COLUMNS, OF_BLOCKS

Ints = NDArray[np.int64]

STRETCH_NS = 60_000_000_000
"""A stretch of this length is long enough: with bounds of 20 us its rate is known to 0.7 us per second."""
DRIFT = 20e-6
"""Assumed drift between two kernels' clocks where nothing better is known: ns per ns, so 20 us per second."""


class Compared(NamedTuple):
    """A comparison with rank 0's clock, as ClockRecord has it; shifts go to other processes, so it has to be small."""

    time_ns: int
    offset_ns: int
    bound_ns: int


class Shift:
    """Moves a rank's stamps onto rank 0's clock.

    Stamps stay as they are while every offset is within its own bound: network namespaces and ranks of a host share
    a clock, and a correction would only add the measurement's error.
    """

    def __init__(self, clocks: Sequence[ClockRecord]) -> None:
        compared = (Compared(c.time_ns, c.offset_ns, c.bound_ns) for c in clocks)
        self._clocks = sorted(compared, key=lambda clock: clock.time_ns)
        self.still = all(abs(c.offset_ns) <= c.bound_ns for c in clocks)
        self.bend_ns = 0 if self.still else _bend_ns(self._clocks)
        """By how much the offset left the line between two comparisons at one between them, beyond their errors."""
        self._before = _drift(self._clocks)
        self._after = _drift(self._clocks[::-1])

    def at(self, times_ns: Ints) -> Ints:
        """The stamps on rank 0's clock, ns; 0 means "not taken" and stays 0."""
        if self.still:
            return times_ns
        first = self._clocks[0]  # subtract its numbers first, since floats have fewer digits
        known_ns = np.array([c.time_ns - first.time_ns for c in self._clocks], dtype=np.float64)
        offsets_ns = np.array([c.offset_ns - first.offset_ns for c in self._clocks], dtype=np.float64)
        since_ns = (times_ns - first.time_ns).astype(np.float64)
        moved_ns = np.interp(since_ns, known_ns, offsets_ns)
        moved_ns += self._before[0] * np.minimum(since_ns, 0.0)
        moved_ns += self._after[0] * np.maximum(since_ns - known_ns[-1], 0.0)
        return np.where(times_ns == 0, 0, times_ns - first.offset_ns - np.rint(moved_ns).astype(np.int64))

    def bound_ns(self, times_ns: Sequence[int]) -> int | None:
        """Largest error of these stamps on rank 0's clock, ns; None where the clocks were never compared."""
        if not self._clocks:
            return None
        largest_ns = max(c.bound_ns for c in self._clocks) + self.bend_ns
        if self.still or not times_ns:
            return largest_ns
        first, last = self._clocks[0], self._clocks[-1]
        before_ns = first.bound_ns + self._before[1] * max(0, first.time_ns - min(times_ns))
        after_ns = last.bound_ns + self._after[1] * max(0, max(times_ns) - last.time_ns)
        return math.ceil(max(largest_ns, before_ns, after_ns))


def _bend_ns(clocks: Sequence[Compared]) -> int:
    """The largest bend over three comparisons one after the other, ns; 0 with fewer, or where their errors explain it.

    Between two of them the clock may bend as much, so the errors of stamps there may be larger by this.
    """
    most = 0.0
    for before, here, after in zip(clocks, clocks[1:], clocks[2:], strict=False):
        share = (here.time_ns - before.time_ns) / max(1, after.time_ns - before.time_ns)
        line_ns = share * (after.offset_ns - before.offset_ns)
        error_ns = here.bound_ns + (1 - share) * before.bound_ns + share * after.bound_ns
        most = max(most, abs(here.offset_ns - before.offset_ns - line_ns) - error_ns)
    return math.ceil(most)


def _drift(clocks: Sequence[Compared]) -> tuple[float, float]:
    """(rate, bound) in ns per ns: how the offset continues beyond the first of `clocks`, and the rate's largest error.

    The rate is 0 where its error is as large as what it would correct; the bound then covers the drift that remains.
    """
    if not clocks:
        return 0.0, 0.0
    end = clocks[0]
    far = next((c for c in clocks if abs(c.time_ns - end.time_ns) >= STRETCH_NS), clocks[-1])
    span_ns = far.time_ns - end.time_ns
    if span_ns == 0:
        return 0.0, DRIFT
    rate = (far.offset_ns - end.offset_ns) / span_ns
    bound = (far.bound_ns + end.bound_ns) / abs(span_ns)
    if bound < min(abs(rate), DRIFT):
        return rate, bound
    return 0.0, min(abs(rate) + bound, DRIFT)


STEP_TAG = b'{"t":"steps"'
"""How a line of steps begins."""


@dataclass(slots=True)
class FileLines:
    """What the lines of a file hold."""

    records: list[Record] = field(default_factory=list)
    """All but those of steps."""
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of each block's lines, bytes."""
    damaged: list[bytes] = field(default_factory=list)
    """Stretches that changed after they were written."""
    loose: int = 0
    """Steps that are followed by no line of their block."""
    whole: bool = True
    """Whether every line is one."""


def read_lines(text: bytes, begin: int) -> FileLines:
    """The records from `begin` on, up to the first line that is none.

    Only the last line of each stretch is decoded; those before it are steps, which the seal covers.
    """
    lines, places = FileLines(), []
    for stretch in stretches(text):
        if stretch.holds is None:  # what follows was cut off, and its seal with it
            lines.whole = False
            lines.loose += steps_in(text[max(begin, stretch.begin) : stretch.end])
        elif not stretch.holds:
            lines.damaged.append(text[stretch.begin : stretch.end])
        else:
            last = text.rfind(b"\n", stretch.begin, stretch.end - 1) + 1 or stretch.begin
            if last >= begin:  # the first stretch is the head
                places.append((max(stretch.begin, begin), last, stretch.end))
    records, whole = decode_records(b"".join([text[last:end] for _, last, end in places]))
    for record, (first, last, end) in zip(records, places, strict=False):
        if isinstance(record, Block):
            lines.blocks.append((first, end))
        elif last > first:
            lines.loose += steps_in(text[first:last])
        lines.records.append(record)
    lines.whole &= whole and len(records) == len(places)
    return lines


def steps_in(lines: bytes) -> int:
    """How many steps some lines hold, as far as they can still be read."""
    packed = [record.n for record in decode_records(lines)[0] if isinstance(record, Packed)]
    return sum(packed) + lines.count(STEP_TAG) - len(packed)


def named(stretch: bytes) -> str:
    """What a damaged stretch of lines holds, as far as it can still be read."""
    records, _ = decode_records(stretch)
    blocks = sorted({record.id for record in records if isinstance(record, Block)})
    blocks = blocks or sorted({record.b for record in records if isinstance(record, Packed)})
    if blocks:
        return f"block {', '.join(map(str, blocks))}"
    if stretch.count(STEP_TAG):
        return "a block"
    kind = re.match(rb'{"t":"(\w+)"', stretch)
    return f"its {kind[1].decode()} line" if kind else "a line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What is read of a rank's file before its steps."""

    file: RankFile
    tables: dict[str, pl.DataFrame]
    """Its rows of OF_BLOCKS."""
    shift: Shift
    text: bytes
    """Its whole lines, to which LINE_SPAN refers."""


def read_rank(path: Path, launch: int, rank: int) -> Rank:
    """What a rank left, but for its steps.

    OSError where the file cannot be read, ValueError where it has no head, another format, numbers beyond 64 bits, or
    was written by another rank or in another launch.
    """
    # A whole file ends in a newline.
    content, newline, tail = read_bytes(path, RECORDS_BYTES_MAX).rpartition(b"\n")
    text = content + newline
    first = text[: text.find(b"\n") + 1]
    head = decode_head(first)
    if head.schema != SCHEMA:
        raise ValueError(f"written in format {head.schema}, this version reads format {SCHEMA}")
    if (head.launch, head.rank) != (launch, rank):
        raise ValueError(f"rank {head.rank} wrote it in launch {head.launch}, so it was copied or renamed")
    rank_lines = read_lines(text, len(first))
    clocks = [record for record in rank_lines.records if isinstance(record, Clock)]
    blocks = [record for record in rank_lines.records if isinstance(record, Block)]
    end = next((record for record in rank_lines.records if isinstance(record, End)), None)
    shift = Shift(clocks)
    columns = _values(blocks, BLOCK_COLUMNS, launch, rank)
    for on_host, name in HOST_TIMES.items():
        columns[on_host] = np.array(columns[name], dtype=np.int64)
        columns[name] = shift.at(columns[on_host])
    spans = np.array(rank_lines.blocks, dtype=np.int64).reshape(-1, 2)
    columns |= dict(zip(LINE_SPAN, spans.T, strict=True))
    memory = [record for record in rank_lines.records if isinstance(record, Memory)]
    tables = {
        "blocks": pl.DataFrame(columns, schema=OF_BLOCKS["blocks"]),
        "memory": pl.DataFrame(_values(memory, MEMORY_COLUMNS, launch, rank), schema=OF_BLOCKS["memory"]),
    }
    phases = [(launch, rank, block.id, name, *ns) for block in blocks for name, ns in block.phases.items()]
    tables["phases"] = pl.DataFrame(phases, schema=OF_BLOCKS["phases"], orient="row")
    file = RankFile(
        **_fields(head, HeadRecord) | {"plan": None},
        clock_bound_ns=shift.bound_ns([at for block in blocks for at in (block.begin_ns, block.end_ns)]),
        clock_corrected=not shift.still,
        clock_bend_ns=shift.bend_ns,
        cut_off=tail != b"" or not rank_lines.whole or rank_lines.loose > 0,
        ended=any(clock.at == "end" for clock in clocks),
        blocks=end.blocks if end and end.blocks >= 0 else None,
        damaged=tuple(named(stretch) for stretch in rank_lines.damaged),
        state=end.state if end else None,
        error=end.error if end else "",
        steps=end.steps if end else 0,
        pauses=tuple(
            PauseRecord(**_fields(record, PauseRecord))
            for record in rank_lines.records
            if isinstance(record, Pause) and record.step >= 0
        ),
        dropped_samples=rank_lines.loose + sum(steps_in(stretch) for stretch in rank_lines.damaged),
    )
    return Rank(file=file, tables=tables, shift=shift, text=text)


def _fields(record: Record, kind: type[Record]) -> dict[str, Any]:
    """The values of a decoded record, by field."""
    return {each.name: getattr(record, each.name) for each in fields(kind)}


def _values(records: Sequence[Any], columns: dict[str, str], launch: int, rank: int) -> dict[str, Any]:
    """Columns of a table with a row per record; `columns` has the field of each."""
    rows = map(operator.attrgetter(*columns.values()), records)
    values = zip(*rows, strict=True) if records else ((),) * len(columns)
    return {
        "launch": [launch] * len(records),
        "rank": [rank] * len(records),
        **dict(zip(columns, values, strict=True)),
    }
