"""One result log of MLPerf Training: what a run trained, how long its epochs took, and the throughput that it states.

Lines to read hold `:::MLLOG ` and a JSON object (key, value, time_ms, event_type, metadata), wherever in the line; all
else is noise. Keys: mlcommons/logging, mlperf_logging/mllog/constants.py. Times are a node's wall clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file
from scaling.traces.profiler.signs import COUNT_MAX

MARK = b":::MLLOG"
LINE_BYTES_MAX = 1 << 16
LINES_MAX = 4_000_000
CUT = 0.98
"""A last epoch that ends with the run, and is shorter than this share of the others, was cut short by the target."""
END_MS = 2_000
"""`epoch_stop` and `run_stop` are written one after the other."""
_ONCE = (
    "submission_benchmark",
    "submission_org",
    "submission_platform",
    "submission_division",
    "global_batch_size",
    "local_batch_size",
    "gradient_accumulation_steps",
    "train_samples",
)


class _Line(msgspec.Struct):
    key: str
    time_ms: float
    value: Any = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


_DECODER = msgspec.json.Decoder(_Line)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A stretch of training: one epoch, or one block between evaluations."""

    name: float
    seconds: float
    samples: float | None
    """None for an epoch, whose size its header gives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """One run."""

    path: Path
    said: dict[str, Any]
    """Its header: the keys of `_ONCE` that it has."""
    stretches: tuple[Stretch, ...]
    """Whole ones, in order."""
    cut: int
    """Stretches that the end of the run cut short; left out."""
    stated: tuple[float, ...]
    """Throughput as the log states it of these stretches, in whatever unit."""
    status: str
    odd: int
    """Marked lines that cannot be read."""

    def number(self, key: str) -> int | None:
        """A whole number above 0 of the header."""
        found = self.said.get(key)
        return (
            found
            if isinstance(found, int) and not isinstance(found, bool) and 0 < found < COUNT_MAX
            else None
        )

    def text(self, key: str) -> str:
        """A text of the header; empty where it has none."""
        found = self.said.get(key)
        return found if isinstance(found, str) else ""


def read_log(path: Path) -> RunLog:
    """Read one log. OSError, or RefusedError where it is none."""
    said: dict[str, Any] = {}
    open_: dict[tuple[str, float], tuple[float, float | None]] = {}
    found: list[tuple[float, Stretch]] = []
    stated: list[tuple[float, float]] = []
    stop_ms, status, odd, marked, last_ms = None, "", 0, 0, -math.inf
    backwards = 0
    for line in _marked(path):
        marked += 1
        try:
            one = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            odd += 1
            continue
        if not 0 <= one.time_ms < COUNT_MAX:
            odd += 1
            continue
        kind, _, edge = one.key.rpartition("_")
        if one.key in _ONCE:
            said.setdefault(one.key, one.value)
        elif kind in ("epoch", "block") and edge in ("start", "stop"):
            # Nodes may each log; the first line of each counts.
            key = (kind, _number(one.metadata.get("epoch_num"), _number(one.value, 0.0)))
            samples = _number(one.metadata.get("samples_count"), None)
            if edge == "start":
                open_.setdefault(key, (one.time_ms, samples))
            elif key in open_:
                begin, first = open_.pop(key)
                many = samples - first if samples is not None and first is not None else None
                if one.time_ms > begin and (many is None or many > 0):
                    seconds = (one.time_ms - begin) / 1e3
                    found.append((one.time_ms, Stretch(name=key[1], seconds=seconds, samples=many)))
                else:
                    odd += 1
        elif one.key in ("tracked_stats", "throughput"):
            value = one.value.get("throughput") if isinstance(one.value, dict) else one.value
            rate = _number(value, None)
            if rate is not None and rate > 0:
                stated.append((one.time_ms, rate))
        elif one.key == "run_stop" and stop_ms is None:
            stop_ms, status = one.time_ms, str(one.metadata.get("status", ""))
        backwards += one.time_ms < last_ms - END_MS
        last_ms = max(last_ms, one.time_ms)
    if not marked:
        raise RefusedError("no line with :::MLLOG in it; a result log of MLPerf Training is expected")
    whole = _whole(found, stop_ms)
    ends = {end for end, _ in whole}
    rates = [min(stated, key=lambda s: abs(s[0] - end))[1] for end in ends] if stated else []
    return RunLog(
        path=path,
        said=said,
        stretches=tuple(stretch for _, stretch in whole),
        cut=len(found) - len(whole),
        stated=tuple(rates),
        status=status,
        odd=odd + backwards,
    )


def _marked(path: Path) -> Any:
    """The JSON of each marked line."""
    seen = 0
    with open_file(path, LOG_BYTES_MAX) as file:
        while line := file.readline(LINE_BYTES_MAX):
            at = line.find(MARK)
            if at >= 0:
                seen += 1
                if seen > LINES_MAX:
                    raise RefusedError(f"it has more than {LINES_MAX} lines of MLPerf's log")
                yield line[at + len(MARK) :].strip()


def _number(value: Any, other: Any) -> Any:
    """A finite number that something can have been counted to; else `other`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return other
    return float(value) if math.isfinite(value) and abs(value) < COUNT_MAX else other


def _whole(found: list[tuple[float, Stretch]], stop_ms: float | None) -> list[tuple[float, Stretch]]:
    """Without a last epoch that the end of the run cut short. Blocks count their samples, so none of them is."""
    if len(found) < 2 or stop_ms is None or found[-1][1].samples is not None:
        return found
    usual = median(stretch.seconds for _, stretch in found[:-1])
    end, last = found[-1]
    return found[:-1] if abs(end - stop_ms) <= END_MS and last.seconds < CUT * usual else found
