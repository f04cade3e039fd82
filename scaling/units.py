"""Parse and format values with units.

Inside the program, times are integer nanoseconds, sizes integer bytes and rates bit/s, and every name has its unit.
Rates are decimal (Gbit = 1e9 bit/s, as networks are sold). Sizes are binary if written with an i (MiB = 2**20).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from scaling.errors import InputError

UNKNOWN = "unknown"
"""How a number is written whose interval is too wide to tell anything."""

_RATE = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
DIGITS_MAX = 18
"""Digits of a number in a text; more fit into no integer of 64 bits."""
_SIZE = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def parse_rate_bit_s(text: str, where: str) -> int:
    """Read a link rate such as `200mbit` or `2.5 Gbit/s` as bit/s; `where` names the key in the error."""
    number, unit = _split(re.sub(r"(?<=[A-Za-z])/s\s*$", "", str(text)))
    rate = round(number * _RATE.get(unit.lower().removesuffix("ps"), 0))
    return _above_zero(rate, f"{where}={text}: not a link rate", _RATE, "200mbit")


def parse_bytes(text: str, where: str) -> int:
    """Read a size such as `2GiB` as bytes; `where` names the key in the error."""
    number, unit = _split(text)
    return _above_zero(round(number * _SIZE.get(unit, 0)), f"{where}={text}: not a size", _SIZE, "2GiB")


def _split(text: str) -> tuple[float, str]:
    """A number and its unit; (0, "") for other text."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", str(text))
    return (float(match[1]), match[2]) if match and len(match[1]) <= DIGITS_MAX else (0.0, "")


def _above_zero(value: int, wrong: str, units: Iterable[str], example: str) -> int:
    if value <= 0:
        raise InputError(f"{wrong}; write a number and a unit ({', '.join(units)}), such as {example}")
    return value


def parse_time_limit_s(text: str, where: str) -> int:
    """Read a time limit as Slurm writes it as seconds: minutes, m:s, h:m:s, days-h, days-h:m, days-h:m:s.

    Slurm reads 0 as no limit of the job. Here it is refused, since it is probably a mistake.
    """
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(text).strip())
    seconds = 0
    if match:
        days, first, second, third = (int(part or 0) for part in match.groups())
        hours_first = match.group(1) is not None or match.group(4) is not None
        scales = (3600, 60, 1) if hours_first else (60, 1, 0)
        seconds = days * 86400 + sum(n * s for n, s in zip((first, second, third), scales, strict=True))
    if seconds <= 0:
        raise InputError(
            f"{where}={text}: not a time limit above 0; write it as Slurm does: minutes, hours:minutes:seconds or "
            "days-hours, such as 90, 1:30:00 or 1-12"
        )
    return seconds


def count(many: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"


def ranks(world_size: int) -> str:
    """`1 rank`, `4 ranks`."""
    return count(world_size, "rank")


def few(names: Sequence[str], most: int) -> str:
    """A list in words: at most so many of them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def spans(values: Iterable[int]) -> list[str]:
    """Ranks or cores as ranges in ascending order: {0, 1, 2, 5} -> [`0-2`, `5`]."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]


def hostlist(names: Iterable[str]) -> str:
    """Names of hosts as Slurm writes them: `gpu[1-3,7]`, `n[08-09],login`. Numbers in brackets are equally long."""
    numbered: dict[tuple[str, int], set[int]] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        numbers = numbered.setdefault((stem, len(digits)), set())
        numbers |= {int(digits)} if digits else set()
    parts = []
    for (stem, width), numbers in numbered.items():
        ranges = ["-".join(end.zfill(width) for end in span.split("-")) for span in spans(numbers)]
        text = ",".join(ranges)
        parts.append(f"{stem}[{text}]" if len(numbers) > 1 else f"{stem}{text}")
    return ",".join(parts)


def significant(number: float, digits: int = 3) -> str:
    """So many significant digits, more where the number is larger: 3120, not 3.12e+03."""
    return f"{number:.0f}" if abs(number) >= 10 ** (digits - 1) else f"{number:.{digits}g}"


def two_digits(number: float) -> str:
    """Two significant digits, more where the number is larger; no exponent from 10 on."""
    return significant(number, 2)


def format_bytes(count: float) -> str:
    """1536 -> `1.5 KiB`."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{significant(count / size)} {unit}"
    return f"{count:.0f} B"


def format_rate(bit_s: float) -> str:
    """200000000 -> `200 Mbit/s`."""
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bit_s >= size:
            return f"{bit_s / size:.4g} {unit}"
    return f"{bit_s:.0f} bit/s"


def format_duration(seconds: float) -> str:
    """75 -> `1 min 15 s`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
