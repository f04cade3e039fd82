"""Checksums in a rank file, so that a digit which changed after it was written is found.

Every line but a step's ends in `,"crc":N}`: the CRC-32 of all bytes since the line of the seal before, up to this key.
A block's line comes after its steps, so its seal covers them. Files of older versions have no seals and are read
without. Needs only the standard library, since workers use it.
"""

from __future__ import annotations

import hashlib
import zlib
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
class Checked:
    """A file's text without the stretches whose seal does not hold, and those stretches."""

    text: bytes
    damaged: tuple[bytes, ...] = ()


def checked(text: bytes) -> Checked:
    """Check the seals of whole lines. A text whose first line has no seal is of an older version and kept as it is."""
    head_end = text.find(b"\n")
    first = text.find(KEY)
    if first < 0 or first > head_end:
        return Checked(text)
    begin = 0
    kept: list[bytes] = []
    damaged: list[bytes] = []
    at = first
    while at >= 0:
        end = text.find(b"\n", at) + 1 or len(text)
        number = text[at + len(KEY) : end].removesuffix(b"\n").removesuffix(b"}")
        if number.isdigit() and len(number) <= DIGITS:
            holds = int(number) == zlib.crc32(memoryview(text)[begin:at])
            (kept if holds else damaged).append(text[begin:end])
            begin = end
        at = text.find(KEY, max(begin, at + 1))
    kept.append(text[begin:])  # what follows the last seal was cut off
    return Checked(b"".join(kept), tuple(damaged))


def digest(content: bytes) -> str:
    """What a rank notes of the plan that it read, to be compared with plan.json later."""
    return hashlib.sha256(content).hexdigest()[:16]
