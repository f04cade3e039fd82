"""Logs of nccl-tests (and rccl-tests): old and new columns, prefixes of launchers, several collectives in one file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scaling.analysis.network.curve import fit
from scaling.errors import InputError

EXPECTED = "a log of nccl-tests is expected, with rows of size, count, type, ... time, algbw, busbw"
MODES = ("out-of-place", "in-place")
_PREFIX = re.compile(r"^\s*(?:\[\d+,\d+\]<std\w+>:?|\d+:(?=\s))?")
_DEVICE = re.compile(
    r"#\s+Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+(\d+)\s+\[([0-9a-fA-Fx:.]+)\]\s+(.*\S)"
)
_COMMAND = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|all_to_all|broadcast|reduce|sendrecv|gather|scatter|hypercube)_perf\b"
)
_NAMES = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
_IN_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv", re.IGNORECASE
)
_FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""busbw / algbw over (n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
LARGE_BYTES = 1 << 20
"""Rows from this bandwidth on show the factor of their collective; below it they have too few digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size in one mode, as printed: nccl-tests rounds bandwidths to 0.01 GB/s."""

    bytes: int
    mode: str
    dtype: str
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None
    """Number of wrong values; None where they were not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDevice:
    """A line under `Using devices`."""

    rank: int
    host: str
    device: int
    bus: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """T(m) = hops (alpha + m beta / n) by the same fit as a run's own sweep (docs/method.md)."""

    mode: str
    alpha_us: float
    busbw_gbit_s: float
    """1/beta."""
    residual: float
    """Median of |T - fitted| / T over the sizes that beta was fitted on."""


@dataclass(slots=True, kw_only=True)
class Section:
    """One collective's table."""

    collective: str | None = None
    how: str = ""
    """Where the collective's name comes from."""
    world_size: int | None = None
    world_from: str = ""
    devices: list[LoggedDevice] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    average_gb_s: float | None = None
    elided: bool = False

    def of(self, mode: str) -> list[Row]:
        """Rows of one mode with bytes in them."""
        return [r for r in self.rows if r.mode == mode and r.bytes > 0]

    @property
    def wrong(self) -> list[Row]:
        """Rows with wrong values."""
        return [r for r in self.rows if r.wrong]

    @property
    def own_average_gb_s(self) -> float | None:
        """Mean of all busbw, as nccl-tests computes it."""
        return sum(r.busbw_gb_s for r in self.rows) / len(self.rows) if self.rows else None

    def fitted(self, mode: str) -> Fit | None:
        """alpha and beta; None where too few sizes, the ranks or the collective are known."""
        n, rows = self.world_size, {r.bytes: r.time_us for r in self.of(mode) if r.time_us > 0}
        if n is None or n < 2 or len(rows) < 3 or self.collective not in _FACTORS or self.wrong:
            return None
        sizes = tuple(sorted(rows))
        found = fit({str(m): np.array([t * 1e3]) for m, t in rows.items()}, sizes, n)  # type: ignore[arg-type]
        alpha, beta = float(np.ravel(found.alpha_ns)[0]), float(np.ravel(found.beta_ns)[0])
        scale = 2.0 / _FACTORS[self.collective]  # half the hops of an all-reduce, each with as much
        if not (math.isfinite(alpha) and beta > 0):
            return None
        large = [m for m in sizes if m >= 1 << 18] or list(sizes[-2:])
        off = [
            abs(rows[m] * 1e3 - float(np.ravel(found.time_ns(float(m)))[0])) / (rows[m] * 1e3) for m in large
        ]
        return Fit(
            mode=mode,
            alpha_us=alpha * scale / 1e3,
            busbw_gbit_s=8 / (beta * scale),
            residual=float(np.median(off)),
        )


def parse_log(text: str, where: str) -> tuple[Section, ...]:
    """Every table of a log; InputError when there is none."""
    sections: list[Section] = [Section()]
    announced: str | None = None
    for raw in text.splitlines():
        line = _PREFIX.sub("", raw, count=1).strip()
        command = _COMMAND.search(line)
        if command:
            announced = _NAMES.get(command[1], command[1])
        if (command or _starts(line)) and sections[-1].rows:
            sections.append(Section())
        now = sections[-1]
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
        elif line in ("...", "…"):
            now.elided = True
        else:
            now.rows += _rows(line)
    found = [s for s in sections if s.rows]
    if not found:
        raise InputError(f"{where}: no row of a bandwidth table in it; {EXPECTED}")
    for section in found:
        _complete(section, where)
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


def _complete(section: Section, where: str) -> None:
    """Find the world size and the collective from other lines of the section."""
    ratios = [
        r.busbw_gb_s / r.algbw_gb_s for r in section.rows if r.bytes >= LARGE_BYTES and r.algbw_gb_s >= 1
    ]
    ratio = float(np.median(ratios)) if ratios else None
    if section.devices:
        section.world_size = len({d.rank for d in section.devices})
        section.world_from = "its device lines"
    named = _IN_NAME.search(Path(where).name)
    if section.collective is None and named:
        plain = re.sub("_", "", named[0].lower())
        section.collective = {
            "allreduce": "all_reduce",
            "allgather": "all_gather",
            "reducescatter": "reduce_scatter",
            "alltoall": "all_to_all",
            "broadcast": "broadcast",
            "sendrecv": "send_recv",
        }[plain]
        section.how = "the file's name"
    if section.collective is None and ratio is not None and _reduces_all(ratio, section.world_size):
        section.collective, section.how = "all_reduce", "busbw / algbw"
    if section.world_size is None and ratio is not None and section.collective in _FACTORS:
        share = ratio / _FACTORS[section.collective]
        if 0.4 < share < 0.9995:
            section.world_size, section.world_from = round(1 / (1 - share)), "busbw / algbw"


def _reduces_all(ratio: float, world_size: int | None) -> bool:
    """Whether busbw / algbw is an all-reduce's: 2 (n-1)/n is 1 for two ranks, and above 1 only for it."""
    if world_size is None:
        return ratio > 1.01
    return world_size > 1 and abs(ratio - 2 * (world_size - 1) / world_size) < 0.01
