"""Logs of nccl-tests (and rccl-tests): old and new columns, prefixes of launchers, several collectives in one file."""

from __future__ import annotations

import math
import re

from scaling.errors import InputError
from scaling.traces.machines.nccl_deduced import complete
from scaling.traces.machines.nccl_section import MODES, LoggedDevice, Row, Section

EXPECTED = "a log of nccl-tests is expected, with rows of size, count, type, ... time, algbw, busbw"
_ROW = re.compile(r"(?:^|[\s:>|\]])(\d{1,18}\s+\d{1,18}\s+[A-Za-z]\w*\s.*)$")
"""A row behind whatever a launcher, a pod's log or a person has put before it."""
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([0-9a-fA-Fx:.]+)\]\s+(.*\S)"
)
_COMMAND = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|all_to_all|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf\b"
)
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}


def parse_log(text: str, where: str) -> tuple[Section, ...]:
    """Every table of a log; InputError when there is none."""
    sections: list[Section] = [Section()]
    announced: str | None = None
    for raw in text.splitlines():
        mark, row = raw.find("#"), _ROW.search(raw.rstrip(" \t|"))
        line = raw[mark:].strip() if mark >= 0 else ""
        command = _COMMAND.search(raw)
        if command:
            announced = _NAMES.get(command[1], command[1])
        if (command or _starts(line)) and sections[-1].rows:
            sections.append(Section())
        now = sections[-1]
        now.titled |= "out-of-place" in line
        if command:
            now.collective, now.how = announced, "its command"
        device = _DEVICE.match(line)
        if device and len(device[1]) < 7:
            now.devices.append(
                LoggedDevice(
                    rank=int(device[1]),
                    host=device[2],
                    device=int(device[3][:6]),
                    bus=device[4],
                    name=device[5],
                )
            )
        elif line.startswith("# Avg bus bandwidth"):
            now.average_gb_s = _number(line.partition(":")[2].strip())
        elif raw.split()[-1:] in (["..."], ["…"]):
            now.elided = True
        elif row:
            now.rows += _rows(row[1])
    found = [s for s in sections if s.rows]
    if not found:
        raise InputError(f"{where}: no row of a bandwidth table in it; {EXPECTED}")
    for section in found:
        complete(section, where)
    return tuple(found)


def _starts(line: str) -> bool:
    """Whether a line begins another test: its settings, its devices, or the title of its columns."""
    return line.startswith(("# nThread", "# Using devices", "# Collective test starting")) or (
        line.startswith("#") and "out-of-place" in line
    )


def _rows(line: str) -> list[Row]:
    words = line.split()
    if len(words) < 7 or not (_whole(words[0]) and _whole(words[1])) or words[2].replace("_", "").isdigit():
        return []
    if not words[2][0].isalpha():
        return []
    for modes in (2, 1):
        values = words[-4 * modes :]
        if len(words) < 3 + len(values) or len(words) > 5 + len(values):
            continue
        found = [_row(words, values[4 * k : 4 * k + 4], MODES[k]) for k in range(modes)]
        if all(r is not None for r in found):
            return [r for r in found if r is not None]
    return []


def _row(words: list[str], values: list[str], mode: str) -> Row | None:
    numbers = [_number(v) for v in values[:3]]
    error = _number(values[3])
    if None in numbers or (error is None and values[3] != "N/A"):
        return None
    time, algbw, busbw = (n for n in numbers if n is not None)
    # The older `error` column is the largest deviation of a value, a small fraction where all is well.
    wrong = None if error is None else (int(error) if float(error).is_integer() else int(error > 1e-3))
    return Row(
        bytes=int(words[0]),
        mode=mode,
        dtype=words[2],
        time_us=time,
        algbw_gb_s=algbw,
        busbw_gb_s=busbw,
        wrong=wrong,
    )


def _whole(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 18


def _number(word: str) -> float | None:
    if len(word) > 24 or not re.fullmatch(r"\d+(\.\d*)?(e[+-]?\d{1,3})?", word, re.ASCII):
        return None
    value = float(word)
    return value if math.isfinite(value) and value < 1e18 else None
