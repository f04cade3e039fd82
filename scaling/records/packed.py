"""Steps as packed integers, which take much fewer bytes than JSON. Needs only the standard library: workers use it.

Consecutive steps of one shape are one table of 64-bit integers, a row a step. Each column is written as its first value
and the differences that follow, since stamps of equal steps differ by almost the same amount. The columns follow each
other, little-endian, and go through zlib at its fastest level.
"""

from __future__ import annotations

import itertools
import operator
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence

from scaling.records.format import (
    AnyStepRow,
    CollectiveRow,
    PackedRecord,
    shortened,
    shortest,
)

LEVEL = 1
"""The fastest, since a rank packs between two blocks."""


def pack_block(
    block: int, steps: Sequence[AnyStepRow], collectives: Sequence[Sequence[CollectiveRow]]
) -> Iterator[PackedRecord]:
    """The steps of one block: a record for each stretch of steps that have as many stamps and collectives.

    `collectives`: empty, or those of each step.
    """
    rows = [shortest(step) for step in steps]
    exchanged = collectives or [()] * len(rows)
    shapes = [(len(row), len(of)) for row, of in zip(rows, exchanged, strict=True)]
    at = 0
    for (stamps, count), same in itertools.groupby(shapes):
        end = at + len(list(same))
        width = max((len(shortened(row)) for of in exchanged[at:end] for row in of), default=0)
        table = [
            (*rows[k], *itertools.chain.from_iterable(row[:width] for row in exchanged[k]))
            for k in range(at, end)
        ]
        yield PackedRecord(b=block, i=at, n=end - at, s=stamps, c=count, w=width, z=pack(table))
        at = end


def pack(table: Sequence[Sequence[int]]) -> bytes:
    """Rows of equal length, of numbers of less than 63 bits."""
    numbers = array("q")
    for column in zip(*table, strict=True):
        numbers.append(column[0])
        numbers.extend(map(operator.sub, column[1:], column))
    if sys.byteorder == "big":
        numbers.byteswap()
    return zlib.compress(numbers.tobytes(), LEVEL)


def unpacked_bytes(steps: int, stamps: int, calls: int, width: int) -> int:
    """How many bytes the integers of a record of this shape take."""
    return steps * (stamps + calls * width) * 8
