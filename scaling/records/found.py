"""What the lines of a rank's file hold: records, where each block lies, and what changed after it was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from scaling.records.format import Record
from scaling.records.lines import Block, Packed, decode_records
from scaling.records.seal import Stretch, stretches

STEP_TAG = b'{"t":"steps"'
"""How a line of steps begins."""


@dataclass(slots=True)
class Found:
    """What the lines of a file hold."""

    records: list[Record] = field(default_factory=list)
    """All but those of steps."""
    blocks: list[tuple[int, int, int]] = field(default_factory=list)
    loose: int = 0
    """Steps that are followed by no line of their block."""
    whole: bool = True
    """Whether every line is one."""


def found_in(text: bytes, begin: int) -> tuple[Found, list[bytes]]:
    """The records from `begin` on, up to the first line that is none; and the stretches that changed."""
    found, damaged = Found(), []
    sealed: list[Stretch] = []
    for stretch in stretches(text):
        if stretch.holds is False:
            damaged.append(text[stretch.begin : stretch.end])
        elif stretch.holds:
            sealed.append(stretch)
        else:  # what follows was cut off, and its seal with it
            found.whole = False
            found.loose += steps_in(text[max(begin, stretch.begin) : stretch.end])
    _seal_by_seal(text, begin, sealed, found)
    return found, damaged


def _seal_by_seal(text: bytes, begin: int, sealed: Sequence[Stretch], found: Found) -> None:
    """Only the last line of each stretch is decoded; those before it are steps, which the seal covers."""
    places = []
    for stretch in sealed:
        last = text.rfind(b"\n", stretch.begin, stretch.end - 1) + 1 or stretch.begin
        if last >= begin:  # the first stretch is the head
            places.append((max(stretch.begin, begin), last, stretch.end))
    records, whole = decode_records(b"".join([text[last:end] for _, last, end in places]))
    for record, (first, last, end) in zip(records, places, strict=False):
        if isinstance(record, Block):
            found.blocks.append((record.id, first, end))
        elif last > first:
            found.loose += steps_in(text[first:last])
        found.records.append(record)
    found.whole &= whole and len(records) == len(places)


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
