"""What the lines of a rank's file hold: records, where each block lies, and what changed after it was written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from scaling.reading import INT_MAX
from scaling.records.format import Record, StepRecord
from scaling.records.lines import Block, Packed, Step, decode_records
from scaling.records.seal import Stretch, stretches

STEP_TAG = b'{"t":"step'
"""How a line of steps begins, packed or not."""


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
        else:
            _seal_by_seal(text, begin, sealed, found)
            sealed = []
            if found.whole:
                _line_by_line(text, max(begin, stretch.begin), found)
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


def _line_by_line(text: bytes, begin: int, found: Found) -> None:
    """Lines without seals; each of them is decoded, since nothing else tells whether it is whole."""
    records, whole = decode_records(text[begin:])
    at, loose = begin, 0
    for record in records:
        end = text.find(b"\n", at) + 1
        if isinstance(record, Step | Packed):
            if isinstance(record, Step) and not _fits(record):
                raise ValueError("a number in it is no stamp, it has more than 64 bits")
            loose += record.n if isinstance(record, Packed) else 1
        else:
            if isinstance(record, Block):
                found.blocks.append((record.id, begin, end))
            else:
                found.loose += loose
            found.records.append(record)
            begin, loose = end, 0
        at = end
    found.loose += loose
    found.whole &= whole


def _fits(step: StepRecord) -> bool:
    """Whether its numbers have 64 bits."""
    return max(map(abs, chain(step.s, *step.c)), default=0) <= INT_MAX


def steps_in(lines: bytes) -> int:
    """How many steps some lines hold, as far as they can still be read."""
    packed = [record.n for record in decode_records(lines)[0] if isinstance(record, Packed)]
    return sum(packed) + lines.count(STEP_TAG) - len(packed)


def named(stretch: bytes) -> str:
    """What a damaged stretch of lines holds, as far as it can still be read."""
    records, _ = decode_records(stretch)
    blocks = sorted({record.id for record in records if isinstance(record, Block)})
    blocks = blocks or sorted({record.b for record in records if isinstance(record, Step | Packed)})
    if blocks:
        return f"block {', '.join(map(str, blocks))}"
    if stretch.count(STEP_TAG):
        return "a block"
    kind = re.match(rb'{"t":"(\w+)"', stretch)
    return f"its {kind[1].decode()} line" if kind else "a line"
