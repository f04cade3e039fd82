"""The lines of one rank's file: from JSON to typed records, up to the first that is not whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scaling.records import STEP_FIELDS

PLAIN_WIDTH = 2
WIDTHS = (PLAIN_WIDTH, len(STEP_FIELDS) - 1, len(STEP_FIELDS))
"""Stamps of a step line: a plain step's, one without waits of earlier micro-steps, all."""


class Head(msgspec.Struct, tag_field="t", tag="head"):
    """The first line."""

    schema: int
    rank: int
    host: int
    hostname: str = ""
    launch: int = 0
    world: int = 0
    groups: dict[str, list[int]] = {}
    warmup: dict[str, int] = {}
    cores: int = 0
    fed_ns: dict[str, int] = {}
    plan: dict[str, Any] | None = None


class Clock(msgspec.Struct, tag_field="t", tag="clock"):
    """The rank's clock against rank 0's, ns, `at` the begin or the end of the rounds."""

    at: str
    offset_ns: int
    bound_ns: int
    time_ns: int


class Step(msgspec.Struct, tag_field="t", tag="step", gc=False):
    """One step of block `b`: its stamps (records.STEP_FIELDS), and one of records.COLLECTIVE_FIELDS a collective."""

    b: int
    i: int
    s: list[int]
    c: list[tuple[int, int, int, int, int, int, int]] = []


class Block(msgspec.Struct, tag_field="t", tag="block"):
    """What stands after a block's last step (records.BLOCK_FIELDS, records.CASE_FIELDS)."""

    id: int
    round: int
    world_size: int
    arm: str
    detailed: bool
    solo_rank: int
    batch: int
    accumulation: int
    lead_in: int
    steps: int
    begin_ns: int
    end_ns: int
    cpu_ns: int
    thread_cpu_ns: int
    delayed_ns: int
    case: int = -1
    peak_bytes: int = -1
    parameters: list[tuple[int, int]] = []
    make_ns: int = -1
    make_cpu_ns: int = -1


class Memory(msgspec.Struct, tag_field="t", tag="memory"):
    """What the rank held after block `b`."""

    b: int
    host_bytes: int
    device_bytes: int | None = None


class Pause(msgspec.Struct, tag_field="t", tag="pause"):
    """An own loop did something else between two steps."""

    time_ns: int
    gap_ns: int


class End(msgspec.Struct, tag_field="t", tag="end"):
    """An own loop came to its end, `done` or `failed`."""

    state: str
    steps: int = 0
    error: str = ""


Record = Clock | Step | Block | Memory | Pause | End
_HEAD = msgspec.json.Decoder(Head)
_LINE = msgspec.json.Decoder(Record)


def read_head(path: Path) -> Head:
    """The first line of a rank file. OSError where it cannot be read, ValueError where there is none."""
    with path.open("rb") as file:
        return decode_head(file.readline())


def decode_head(line: bytes) -> Head:
    """ValueError where it is none."""
    try:
        return _HEAD.decode(line)
    except msgspec.DecodeError as error:
        raise ValueError("no head line; the file was cut off or damaged at its start") from error


def decode_records(text: bytes) -> tuple[Sequence[Record], bool]:
    """Every line, or those before the first that is not whole; and whether that was all."""
    try:
        found = _LINE.decode_lines(text)
    except msgspec.DecodeError:
        found = []
        for line in text.split(b"\n"):
            try:
                found.append(_LINE.decode(line))
            except msgspec.DecodeError:
                break
        whole = False
    else:
        whole = True
    odd = (k for k, r in enumerate(found) if isinstance(r, Step) and len(r.s) not in WIDTHS)
    first = next(odd, None)
    return (found, whole) if first is None else (found[:first], False)
