"""The lines of one rank's file, from JSON to records up to the first that is not whole; and what they say of it."""

from __future__ import annotations

import operator
import typing
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache, reduce
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from scaling.reading import INT_MAX, RECORDS_BYTES_MAX, TEXT_BYTES_MAX, open_file
from scaling.records.encoding import unpacked_bytes
from scaling.records.format import (
    COLLECTIVE_WIDTHS,
    STEP_WIDTHS,
    BlockRecord,
    ClockRecord,
    EndRecord,
    HeadRecord,
    MemoryRecord,
    PackedRecord,
    PauseRecord,
    PlainRow,
    Record,
)

T = TypeVar("T", bound=Record)

PLAIN_WIDTH = len(PlainRow._fields)


def _decoded(kind: type[T], **options: Any) -> type[T]:
    """A msgspec Struct with the fields of a record, since only Structs can be decoded by their tag."""
    hints = {name: _within_64_bits(hint) for name, hint in typing.get_type_hints(kind).items()}
    given: list[Any] = []
    for each in fields(kind):
        defaults = {"default": each.default, "default_factory": each.default_factory}
        default: Any = {key: value for key, value in defaults.items() if value is not MISSING}
        given.append((each.name, hints[each.name], msgspec.field(**default)))
    struct = msgspec.defstruct(kind.__name__, given, tag_field="t", tag=kind.TAG, kw_only=True, **options)
    return cast("type[T]", struct)


def _within_64_bits(hint: Any) -> Any:
    """The type of a field, whose numbers have to fit into a column; those of steps are looked at later."""
    bounded: dict[Any, Any] = {
        int: _INT,
        int | None: _INT | None,
        tuple[int, ...]: tuple[_INT, ...],
        dict[str, tuple[int, int]]: dict[str, tuple[_INT, _INT]],
    }
    return bounded.get(hint, hint)


_INT = typing.Annotated[int, msgspec.Meta(ge=-INT_MAX, le=INT_MAX)]

Head = _decoded(HeadRecord)
Clock = _decoded(ClockRecord)
Packed = _decoded(PackedRecord, gc=False)
Block = _decoded(BlockRecord)
Memory = _decoded(MemoryRecord)
Pause = _decoded(PauseRecord)
End = _decoded(EndRecord)

_HEAD: msgspec.json.Decoder[HeadRecord] = msgspec.json.Decoder(Head)
_LINE: msgspec.json.Decoder[Record] = msgspec.json.Decoder(
    reduce(operator.or_, [Clock, Packed, Block, Memory, Pause, End])
)


_ODD = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""No record: no JSON, other fields, text that is not UTF-8, or nested without end."""


def read_head(path: Path) -> HeadRecord:
    """The first line of a rank file. OSError where it cannot be read, ValueError where it is no head."""
    with open_file(path, RECORDS_BYTES_MAX) as file:
        return decode_head(file.readline(TEXT_BYTES_MAX))


def decode_head(line: bytes) -> HeadRecord:
    """The head in a file's first line; ValueError where it is none."""
    try:
        return _HEAD.decode(line)
    except _ODD as error:
        raise ValueError("no head line; the file was cut off or damaged at its start") from error


def decode_records(text: bytes) -> tuple[Sequence[Record], bool]:
    """Every line, or those before the first that is not whole; and whether that was all."""
    try:
        records = _LINE.decode_lines(text)
    except _ODD:
        records = []
        for line in text.split(b"\n"):
            try:
                records.append(_LINE.decode(line))
            except _ODD:
                break
        whole = False
    else:
        whole = True
    packed = ((k, p) for k, p in enumerate(records) if isinstance(p, Packed))
    first = next((k for k, p in packed if not _sound_shape(p.i, p.n, p.s, p.c, p.w)), None)
    return (records, whole) if first is None else (records[:first], False)


@lru_cache(1024)  # a large run has a million of them, of a few shapes
def _sound_shape(first: int, steps: int, stamps: int, calls: int, width: int) -> bool:
    """Whether packed steps have a shape that is possible: see records.format.PackedRecord."""
    sound = width in COLLECTIVE_WIDTHS if calls else width == 0
    counts = first >= 0 and steps > 0 and calls >= 0 and first + steps <= INT_MAX
    of_rows = stamps == PLAIN_WIDTH or stamps in STEP_WIDTHS
    return of_rows and sound and counts and unpacked_bytes(steps, stamps, calls, width) < INT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile(HeadRecord):
    """What one rank left: its head but for a plan, and whether its file is complete."""

    clock_bound_ns: int | None
    """Largest error of its stamps on rank 0's clock; None where the two clocks were never compared."""
    clock_corrected: bool
    """Whether its stamps were moved onto rank 0's clock."""
    clock_bend_ns: int = 0
    """By how much its clock drifted unevenly, beyond what the errors of its comparisons explain."""
    cut_off: bool
    ended: bool
    """Whether the rank reached the end of the launch, where its clock is compared a second time."""
    blocks: int | None = None
    """Blocks that it wrote by its own count; None where the file has no end line, or one that does not count them."""
    damaged: tuple[str, ...] = ()
    """What was left out because it changed after it was written: blocks, or kinds of lines."""
    state: str | None = None
    """Own loops: `done` or `failed`; None where the file has no end line."""
    error: str = ""
    steps: int = 0
    """Own loops: steps that it ran by its own count; 0 where the file has no end line."""
    pauses: tuple[PauseRecord, ...] = ()
    """Own loops: pauses between steps and steps that took far longer than usual, by this rank's own clock."""
    dropped_samples: int = 0
    """Steps that belong to no whole block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Records that are missing, of one rank or of a whole launch."""

    launch: int
    rank: int | None = None
    what: str

    def __str__(self) -> str:
        whose = "" if self.rank is None else f"rank {self.rank} "
        return f"launch {self.launch}: {whose}{self.what}"
