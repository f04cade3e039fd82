"""How a rank file's lines are written: steps as packed integers, and checksums. Workers use it: standard library only.

Consecutive steps of one shape are one table of 64-bit integers, a row a step, which takes much fewer bytes than JSON.
Each column is written as its first value and the differences that follow, since stamps of equal steps differ by almost
the same amount. The columns follow each other, little-endian, and go through zlib at its fastest level.

Every line but those of steps ends in `,"crc":N}`: the CRC-32 of all bytes since the line of the seal before, up to
this key. A block's line comes after its steps, so its seal covers them, and a digit that changed is found.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import operator
import re
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from scaling.records import files
from scaling.records.format import AnyStepRow, CollectiveRow, PackedRecord, shortened

LEVEL = 1
"""The fastest, since a rank packs between two blocks."""


def pack_block(
    block: int, steps: Sequence[AnyStepRow], collectives: Sequence[Sequence[CollectiveRow]]
) -> Iterator[PackedRecord]:
    """The steps of one block: a record for each stretch of steps of one kind that have as many collectives.

    `collectives`: empty, or those of each step.
    """
    exchanged = collectives or [()] * len(steps)
    shapes = [(type(row), len(calls)) for row, calls in zip(steps, exchanged, strict=True)]
    at = 0
    for (_, count), same in itertools.groupby(shapes):
        end = at + len(list(same))
        stamps = max(len(shortened(row)) for row in steps[at:end])
        width = max((len(shortened(row)) for calls in exchanged[at:end] for row in calls), default=0)
        table = [
            (*steps[k][:stamps], *itertools.chain.from_iterable(row[:width] for row in exchanged[k]))
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


KEY = b',"crc":'
DIGITS = 10
"""Decimal digits of a 32-bit number at most."""
_SEAL = re.compile(KEY + rb"([0-9]{1,%d})\}?(?:\n|\Z)" % DIGITS)
"""The seal at the end of a line, or of a text that was cut off behind it."""


class Sealer:
    """Seals the lines of one file as they are written."""

    def __init__(self) -> None:
        self._sum = 0

    def pass_on(self, line: str) -> str:
        """A line without a seal, which the next seal covers."""
        self._sum = crc32(line.encode(), self._sum)
        return line

    def seal(self, line: str) -> str:
        """A line, `{...}` and a newline, with its seal."""
        body = line.rstrip("\n").removesuffix("}")
        total = crc32(body.encode(), self._sum)
        self._sum = 0
        return f"{body}{KEY.decode()}{total}}}\n"


class SealedLines(NamedTuple):
    """Whole lines up to a seal, as places in the text: a small run has thousands of them."""

    begin: int
    end: int
    holds: bool | None
    """Whether the seal holds; None: the lines have none."""


def stretches(text: bytes) -> Iterator[SealedLines]:
    """The stretches of whole lines, in order; the last one may have no seal, since what follows it was cut off."""
    view, begin = memoryview(text), 0
    for seal in _SEAL.finditer(text):
        at, end = seal.span()
        yield SealedLines(begin, end, int(seal[1]) == crc32(view[begin:at]))
        begin = end
    if begin < len(text):
        yield SealedLines(begin, len(text), None)


def digest(content: bytes) -> str:
    """What a rank notes of the plan that it read, to be compared with plan.json later."""
    return hashlib.sha256(content).hexdigest()[:16]


def digest_of(value: Any) -> str:
    """The digest of a dataclass or plain value, however a file has it."""
    return digest(json.dumps(files.encode(value), sort_keys=True).encode())
