"""Checksums in a rank file, so that a digit which changed after it was written is found.

Every line but those of steps ends in `,"crc":N}`: the CRC-32 of all bytes since the line of the seal before, up to
this key. A block's line comes after its steps, so its seal covers them. Needs only the standard library, since workers
use it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

KEY = b',"crc":'
DIGITS = 10
"""Of a 32-bit number."""
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


class Stretch(NamedTuple):
    """Whole lines up to a seal, as places in the text: a small run has thousands of them."""

    begin: int
    end: int
    holds: bool | None
    """Whether the seal holds; None: the lines have none."""


def stretches(text: bytes) -> Iterator[Stretch]:
    """The stretches of whole lines, in order; the last one may have no seal, since what follows it was cut off."""
    view, begin = memoryview(text), 0
    for found in _SEAL.finditer(text):
        at, end = found.span()
        yield Stretch(begin, end, int(found[1]) == crc32(view[begin:at]))
        begin = end
    if begin < len(text):
        yield Stretch(begin, len(text), None)


def digest(content: bytes) -> str:
    """What a rank notes of the plan that it read, to be compared with plan.json later."""
    return hashlib.sha256(content).hexdigest()[:16]
