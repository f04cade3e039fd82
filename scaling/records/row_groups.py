"""Append Parquet files to one another without decoding their rows.

A Parquet file is a marker, the pages of its columns, and a footer that says where they lie. The pages of several files
are copied one after the other, and one footer has all row groups with their new places.
https://parquet.apache.org/docs/file-format
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from scaling.reading import RECORDS_BYTES_MAX, open_file
from scaling.records.thrift import Fields, read_struct, write_struct

MARKER = b"PAR1"
TAIL_BYTES = 8
"""At a file's end: the length of the footer, and the marker."""
PIECE_BYTES = 1 << 20

ROWS, GROUPS = 3, 4
"""Fields of a footer; these and the others as in parquet.thrift."""
COLUMNS, GROUP_PLACE, ORDINAL = 1, 5, 7
"""Fields of a row group. Its ordinal counts from 0 in each file, and may be missing."""
CHUNK_FACTS, CHUNK_PLACES = 3, (2, 4, 6)
"""Fields of a column chunk: its facts; where it and its two indexes begin."""
FACTS_PLACES = (9, 10, 11, 14)
"""Fields of these facts: where the data, index and dictionary pages and the Bloom filter begin."""


def append_files(files: Sequence[Path], into: Path) -> None:
    """Write the row groups of all files, in order, to one file. OSError and RefusedError as open_file has them.

    ValueError where a file is not Parquet, or has other columns or metadata than the first.
    """
    whole: Fields = {}
    with into.open("wb") as out:
        out.write(MARKER)
        for path in files:
            with open_file(path, RECORDS_BYTES_MAX) as file:
                footer, end = _footer(file, path)
                _move(footer, out.tell() - len(MARKER))
                whole = _joined(whole, footer, path) if whole else footer
                file.seek(len(MARKER))
                left = end - len(MARKER)
                while left and (piece := file.read(min(left, PIECE_BYTES))):
                    left -= out.write(piece)
        text = write_struct(whole)
        out.write(text + len(text).to_bytes(4, "little") + MARKER)


def _footer(file: BinaryIO, path: Path) -> tuple[Fields, int]:
    """A file's footer, and where it begins, which is the end of the pages."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - TAIL_BYTES, 0))
    tail = file.read()
    begin = size - TAIL_BYTES - int.from_bytes(tail[:4], "little")
    if tail[4:] != MARKER or begin < len(MARKER):
        raise ValueError(f"{path}: not a Parquet file")
    file.seek(begin)
    return read_struct(file.read(size - TAIL_BYTES - begin)), begin


def _move(footer: Fields, by: int) -> None:
    """Move all places of a footer by some bytes, in place."""
    for group in footer[GROUPS][1][1]:
        _add(group, (GROUP_PLACE,), by)
        group.pop(ORDINAL, None)
        for chunk in group[COLUMNS][1][1]:
            _add(chunk, CHUNK_PLACES, by)
            _add(chunk[CHUNK_FACTS][1], FACTS_PLACES, by)


def _add(fields: Fields, numbers: Sequence[int], by: int) -> None:
    """Places of 0 stand for none: every file begins with its marker."""
    for number in numbers:
        kind, place = fields.get(number, (0, 0))
        if place:
            fields[number] = (kind, place + by)


def _joined(whole: Fields, footer: Fields, path: Path) -> Fields:
    """A footer with the rows and the row groups of two."""
    if {**whole, ROWS: None, GROUPS: None} != {**footer, ROWS: None, GROUPS: None}:
        raise ValueError(f"{path}: has other columns or metadata than the files before it")
    (kind, rows), (of, (item, groups)) = whole[ROWS], whole[GROUPS]
    more = footer[GROUPS][1][1]
    return {**whole, ROWS: (kind, rows + footer[ROWS][1]), GROUPS: (of, (item, [*groups, *more]))}
