"""The steps of a few blocks at a time, of all ranks, as frames: numbers go to arrays without an object for each row.

A block of all ranks is the unit of every statistic, and a rank's file has its blocks one after the other. The reader
therefore takes the same few blocks from every file in turn.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from scaling.reading import INT_MAX, open_file
from scaling.records.decode import PLAIN_WIDTH, Block, Packed, decode_records
from scaling.records.encoding import unpacked_bytes
from scaling.records.format import (
    COLLECTIVE_DEFAULTS,
    COLLECTIVE_FIELDS,
    STEP_DEFAULTS,
    STEP_FIELDS,
    PackedRecord,
    Record,
)
from scaling.records.rank_file import Ints, Shift
from scaling.records.tables import LINE_SPAN, REPEATED_OF_BLOCK, SCHEMAS
from scaling.settings.schedule import FABRIC

PARAMETERS = b'"parameters":['

STAMPS = [
    STEP_FIELDS.index(name)
    for name in ("begin_ns", "end_ns", "compute_end_ns", "sync_end_ns", "buffer_begin_ns", "buffer_end_ns")
]
COLLECTIVE_STAMPS = [
    COLLECTIVE_FIELDS.index(name)
    for name in ("ready_ns", "launch_ns", "done_ns", "enqueue_ns", "wait_ns", "resume_ns", "start_ns")
]
_STEP_COLUMNS = (*STEP_FIELDS, "plain")
"""Plain steps have no phases, which is not the same as phases that were not taken."""


@dataclass(slots=True)
class _Rows:
    """Rows of one kind, as pieces that follow each other."""

    pieces: list[tuple[Ints, Ints, Ints]] = field(default_factory=list)
    """(the row of the stretch's `blocks` and the step that each belongs to, columns x rows)."""

    def columns(self, names: Sequence[str]) -> tuple[Ints, dict[str, Ints]]:
        """Rows of `blocks`, and columns by name; the pieces are given up."""
        none = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros((len(names), 0), np.int64)
        several = zip(none, *self.pieces, strict=True)
        self.pieces.clear()
        owner, step, values = (np.concatenate(pieces, axis=-1) for pieces in several)
        return owner, {"step": step, **dict(zip(names, values, strict=True))}


_Shape = tuple[int, int, int, int, int]
"""What steps have in common that can be unpacked together: i, n, s, c and w of records.format.PackedRecord."""


ROOM_ROWS, ROWS_A_BYTE = 1 << 20, 2
"""How many rows a stretch may unpack to at most. Measured steps take 4 bytes a row and more; where a virtual clock has
them take exactly the same time, 1000 to a block and 50 collectives each, there are 1.4 rows a byte. zlib goes to 50."""


class Gathered:
    """Rows of the blocks of a stretch, while they are read. `size`: the bytes of their lines."""

    def __init__(self, size: int) -> None:
        self.steps, self.collectives, self.parameters = _Rows(), _Rows(), _Rows()
        self.lost = 0
        self.room = ROOM_ROWS + ROWS_A_BYTE * size

    def frames(self, keys: pl.DataFrame) -> dict[str, pl.DataFrame]:
        """The tables, once; `keys`: the stretch's `blocks` with the columns that each row repeats."""
        owner, columns = self.steps.columns(_STEP_COLUMNS)
        plain = columns.pop("plain") > 0
        steps = _rows(keys, owner, columns, "steps")
        if plain.any():
            names = STEP_FIELDS[PLAIN_WIDTH:]
            steps = steps.with_columns(pl.when(pl.lit(pl.Series(~plain))).then(pl.col(names)))
        steps = steps.with_columns(tokens=pl.when(pl.col("tokens") >= 0).then("tokens"))
        buckets = _rows(keys, *self.collectives.columns(COLLECTIVE_FIELDS), "buckets")
        swept = buckets["arm"] == FABRIC
        fabric = buckets.filter(swept)
        if fabric.height:
            buckets = buckets.filter(~swept)
        owner, columns = self.parameters.columns(("bytes", "ready_ns"))
        columns["index"] = columns.pop("step")
        parameters = _rows(keys, owner, columns, "parameters")
        return {"steps": steps, "buckets": buckets, "fabric": fabric, "parameters": parameters}


def gather(number: int, rows: Ints, texts: Sequence[bytes], shifts: Sequence[Shift], into: Gathered) -> None:
    """One block of all its ranks; `texts`: the lines of each row of the stretch's `blocks`.

    Lines that cannot be read leave steps out, which records.check notices.
    """
    alike: dict[_Shape, list[tuple[int, Shift, bytes]]] = defaultdict(list)
    read = _decoded([_steps_of(texts[row]) for row in rows.tolist()])
    for row, shift, records in zip(rows.tolist(), shifts, read, strict=True):
        for record in records:
            if isinstance(record, Packed):
                count = record.n * (1 + record.c)
                if record.b != number or count > into.room:
                    into.lost += record.n
                elif (numbers := _unpacked(record)) is not None:
                    into.room -= count
                    shape = record.i, record.n, record.s, record.c, record.w
                    alike[shape].append((row, shift, numbers))
            elif isinstance(record, Block) and record.parameters:
                each = np.array(record.parameters, dtype=np.int64)
                into.parameters.pieces.append((np.full(len(each), row), np.arange(len(each)), each.T))
    for shape, pieces in alike.items():
        _add_packed(shape, pieces, into)


def _steps_of(text: bytes) -> bytes:
    """The lines of a block that hold steps; with its own line, the last one, where that holds parameters."""
    last = text.rfind(b"\n", 0, -1) + 1
    return text if text.find(PARAMETERS, last) >= 0 else text[:last]


def _decoded(texts: Sequence[bytes]) -> Iterator[Sequence[Record]]:
    """The records of each text, up to its first line that is none; all are decoded at once where every line is one."""
    records, whole = decode_records(b"".join(texts))
    counts = [text.count(b"\n") for text in texts]
    if not whole or len(records) != sum(counts):
        yield from (decode_records(text)[0] for text in texts)
        return
    end = 0
    for count in counts:
        begin, end = end, end + count
        yield records[begin:end]


def _unpacked(record: PackedRecord) -> bytes | None:
    """The integers' bytes; None where there are more or fewer than the record says."""
    size = unpacked_bytes(record.n, record.s, record.c, record.w)
    unpacker = zlib.decompressobj()
    try:
        numbers = unpacker.decompress(record.z, size + 1)
    except zlib.error:
        return None
    return numbers if len(numbers) == size and unpacker.eof else None


def _add_packed(shape: _Shape, pieces: Sequence[tuple[int, Shift, bytes]], into: Gathered) -> None:
    """Steps of one shape, of many ranks at once."""
    first, count, stamps, calls, width = shape
    ranks, columns = len(pieces), stamps + calls * width
    packed = np.frombuffer(b"".join([numbers for _, _, numbers in pieces]), dtype="<i8")
    table = packed.reshape(ranks, columns, count).cumsum(axis=2).transpose(1, 0, 2)  # columns x ranks x steps
    shifts = [shift for _, shift, _ in pieces]
    rows = np.array([row for row, _, _ in pieces], dtype=np.int64)
    number = np.broadcast_to(np.arange(first, first + count), (ranks, count))
    steps = np.zeros((len(_STEP_COLUMNS), ranks, count), dtype=np.int64)
    _fill(steps[: len(STEP_FIELDS)], STEP_DEFAULTS)
    steps[:stamps] = table[:stamps]
    steps[-1] = stamps == PLAIN_WIDTH
    _move(steps, STAMPS, shifts)
    into.steps.pieces.append((np.repeat(rows, count), number.ravel(), steps.reshape(len(steps), -1)))
    if not calls:
        return
    sent = np.empty((len(COLLECTIVE_FIELDS), ranks, count, calls), dtype=np.int64)
    _fill(sent, COLLECTIVE_DEFAULTS)
    sent[:width] = table[stamps:].reshape(calls, width, ranks, count).transpose(1, 2, 3, 0)
    _move(sent, COLLECTIVE_STAMPS, shifts)
    number = np.repeat(number, calls, axis=1)
    owner = np.repeat(rows, count * calls)
    into.collectives.pieces.append((owner, number.ravel(), sent.reshape(len(sent), -1)))


def _fill(columns: Ints, defaults: Sequence[int]) -> None:
    """Give the last columns what a row stands for that ends before them, in place."""
    for column, value in zip(columns[::-1], defaults[::-1], strict=False):
        column[...] = value


def _move(values: Ints, columns: Sequence[int], shifts: Sequence[Shift]) -> None:
    """Move stamps onto rank 0's clock, in place; `values`: columns x ranks x ..."""
    for k, shift in enumerate(shifts):
        if not shift.still:
            values[columns, k] = shift.at(values[columns, k])


def _rows(keys: pl.DataFrame, owner: Ints, columns: Mapping[str, Ints], table: str) -> pl.DataFrame:
    """Rows of a table; `owner`: the row of `keys` that each repeats."""
    series = {column.name: column for column in keys[owner].iter_columns()}
    series |= {name: pl.Series(name, values) for name, values in columns.items()}
    return pl.DataFrame([series[name] for name in SCHEMAS[table]])


class Stored(NamedTuple):
    """Where the lines of a rank's blocks are, and what moves its stamps onto rank 0's clock."""

    path: Path
    """A copy with lines of several ranks, or the rank's own file."""
    shift: Shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Whole blocks of a launch and where their steps lie. It can go to another process."""

    launch: int
    blocks: pl.DataFrame
    """A row for each block and rank: the table `blocks`, and LINE_SPAN within `files`."""
    files: Mapping[int, Stored]
    """By rank."""

    def parts(self, most_bytes: int) -> Iterator[Stretch]:
        """Stretches of it that follow each other, of whole blocks, with lines of about `most_bytes` each."""
        size = pl.col("lines_end") - pl.col("lines_begin")
        sizes = self.blocks.group_by("block").agg(bytes=size.sum()).sort("block")
        before = sizes["bytes"].cum_sum() - sizes["bytes"]
        for part in sizes.with_columns(part=before // most_bytes).partition_by("part", maintain_order=True):
            inside = pl.col("block").is_between(part["block"][0], part["block"][-1])
            yield replace(self, blocks=self.blocks.filter(inside))

    def read(self) -> tuple[dict[str, pl.DataFrame], int]:
        """The tables of its blocks by name, block after block and rank by rank; and how many steps belong to none."""
        blocks = self.blocks.sort("block", "rank")
        texts = _texts(self.files, blocks)
        rows = Gathered(sum(map(len, texts)))
        for (number,), part in blocks.with_row_index("at").group_by("block", maintain_order=True):
            shifts = [self.files[rank].shift for rank in part["rank"].to_list()]
            gather(int(number), part["at"].cast(pl.Int64).to_numpy(), texts, shifts, rows)
        frames = rows.frames(blocks.select(list(REPEATED_OF_BLOCK)))
        return {"blocks": blocks.drop(list(LINE_SPAN)), **frames}, rows.lost


def _texts(files: Mapping[int, Stored], blocks: pl.DataFrame) -> list[bytes]:
    """The lines of each row of `blocks`; from each file in one piece."""
    spans: dict[Path, list[tuple[int, int, int]]] = defaultdict(list)
    for row, (rank, begin, end) in enumerate(blocks.select("rank", *LINE_SPAN).iter_rows()):
        spans[files[rank].path].append((row, begin, end))
    texts = [b""] * blocks.height
    for path, lines in spans.items():
        first, last = min(begin for _, begin, _ in lines), max(end for *_, end in lines)
        with open_file(path, INT_MAX) as file:
            file.seek(first)
            piece = file.read(last - first)
        for row, begin, end in lines:
            texts[row] = piece[begin - first : end - first]
    return texts
