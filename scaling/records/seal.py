"""Checksums in a rank file, so that a digit which changed after it was written is found.

Every line but those of steps ends in `,"crc":N}`: the CRC-32 of all bytes since the line of the seal before, up to
this key. A block's line comes after its steps, so its seal covers them. Files of older versions have no seals and are
read without. Needs only the standard library, since workers use it.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

KEY = b',"crc":'
DIGITS = 10
"""Of a 32-bit number."""


class Sealer:
    """Seals the lines of one file as they are written."""

    def __init__(self) -> None:
        self._sum = 0

    def pass_on(self, line: str) -> str:
        """A line without a seal, which the next seal covers."""
        self._sum = zlib.crc32(line.encode(), self._sum)
        return line

    def seal(self, line: str) -> str:
        """A line, `{...}` and a newline, with its seal."""
        body = line.rstrip("\n").removesuffix("}")
        total = zlib.crc32(body.encode(), self._sum)
        self._sum = 0
        return f"{body}{KEY.decode()}{total}}}\n"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole lines up to a seal, as places in the text."""

    begin: int
    end: int
    holds: bool | None
    """Whether the seal holds; None: the lines have none."""


def stretches(text: bytes) -> Iterator[Stretch]:
    """The stretches of whole lines, in order; the last one may have no seal, since what follows it was cut off.

    A text whose first line has no seal is of an older version and one stretch without a seal.
    """
    first = text.find(KEY)
    at = first if 0 <= first <= text.find(b"\n") else -1
    view, begin = memoryview(text), 0
    while at >= 0:
        end = text.find(b"\n", at) + 1 or len(text)
        number = text[at + len(KEY) : end].removesuffix(b"\n").removesuffix(b"}")
        if number.isdigit() and len(number) <= DIGITS:
            yield Stretch(begin, end, int(number) == zlib.crc32(view[begin:at]))
            begin = end
        at = text.find(KEY, max(begin, at + 1))
    if begin < len(text):
        yield Stretch(begin, len(text), None)


def digest(content: bytes) -> str:
    """What a rank notes of the plan that it read, to be compared with plan.json later."""
    return hashlib.sha256(content).hexdigest()[:16]
