"""The rows of benchmarks/gpu.py: what was measured, the bar, and whether it is met. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PHASE_BAR, PHASE_FLOOR_MS = 0.02, 0.010
"""Tolerances of a phase, relative and absolute: recording an event takes some us, which counts in short phases."""
OVERHEAD_BAR = 0.005
BOUND_BAR_US = 200.0
"""As in tests/worker/test_gpu.py: an event, a synchronise and a read of the host's clock take some 10 us."""
JITTER_US = 2.0
"""Elapsed times are single-precision ms: 0.5 us over a second, and the cost of the call itself."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table. `met` is None where there is no bar, or where the device was not a GPU."""

    section: str
    what: str
    measured: str
    bar: str = ""
    met: bool | None = None
    value: float | None = None


def phase(name: str, events_ms: float, record_ms: float, record: str = "the profiler") -> Row:
    """A phase by events against the same phase by the device's own record, mean ms a step."""
    apart = abs(events_ms - record_ms)
    relative = apart / record_ms if record_ms else float(apart > 0)
    return Row(
        section="phases",
        what=name,
        measured=f"{events_ms:.3f} ms by events, {record_ms:.3f} by {record} ({relative:.2%} apart)",
        bar=f"{PHASE_BAR:.0%}, or {PHASE_FLOOR_MS * 1e3:.0f} us",
        met=apart <= max(PHASE_BAR * record_ms, PHASE_FLOOR_MS),
        value=relative,
    )


def overhead(
    name: str,
    ratio: tuple[float, float, float],
    again: tuple[float, float, float] | None,
    cpu_ms: float,
) -> Row:
    """The cost of a probe: (value, low, high) of its step over the plain one, and of plain over plain (A/A).

    `again` None: a number without a bar. Where A/A is as wide as the bar, so small a cost cannot be resolved, and the
    bar is not met.
    """
    value, low, high = (number - 1 for number in ratio)
    text = f"{value:+.2%} [{low:+.2%}, {high:+.2%}] of the step, {cpu_ms:+.3f} ms of CPU"
    if again is None:
        return Row(section="probe", what=name, measured=text, value=value)
    floor = (again[2] - again[1]) / 2
    return Row(
        section="probe",
        what=name,
        measured=f"{text}; A/A {again[0] - 1:+.2%} ±{floor:.2%}",
        bar=f"{OVERHEAD_BAR:.1%}, A/A within it",
        met=value <= OVERHEAD_BAR and max(floor, abs(again[0] - 1)) <= OVERHEAD_BAR,
        value=value,
    )


def anchors(bound_ns: int, late_ns: Sequence[int]) -> tuple[Row, ...]:
    """The clock's stated bound, and a check of it: an event cannot be later than the host saw it."""
    bound_us, late_us = bound_ns / 1e3, sorted(ns / 1e3 for ns in late_ns)
    median = late_us[len(late_us) // 2]
    return (
        Row(
            section="anchors",
            what="bound, device clock to host clock",
            measured=f"{bound_us:.1f} us",
            bar=f"{BOUND_BAR_US:.0f} us",
            met=bound_us <= BOUND_BAR_US,
            value=bound_us,
        ),
        Row(
            section="anchors",
            what="an event before the host saw it, least",
            measured=f"{late_us[0]:+.1f} us (median {median:+.1f}) of {len(late_us)} over a second",
            bar="no earlier than the bound allows",
            met=late_us[0] >= -bound_us - JITTER_US and median <= BOUND_BAR_US,
            value=late_us[0],
        ),
    )


def beside(what: str, ours: tuple[float | str | None, ...], theirs: float | str | None, slack: float) -> Row:
    """A field of telemetry, sampled just before and just after nvidia-smi.

    A value that only nvidia-smi has is a fault. A value that only telemetry has cannot be checked.
    """
    given = [value for value in ours if value is not None]
    if theirs is None:
        met = None if given else True
    elif isinstance(theirs, str) or not given or any(isinstance(value, str) for value in given):
        met = bool(given) and all(value == theirs for value in given)
    else:
        met = min(given) - slack <= theirs <= max(given) + slack  # type: ignore[type-var, operator]
    shown = " to ".join(dict.fromkeys("null" if value is None else _text(value) for value in ours))
    return Row(
        section="telemetry",
        what=what,
        measured=f"{shown}; nvidia-smi {'null' if theirs is None else _text(theirs)}",
        bar=f"±{slack:g}" if slack else "the same",
        met=met,
    )


def run(what: str, status: int, points: Mapping[int, Mapping[str, Any]], wanted: Sequence[int]) -> list[Row]:
    """A `scaling run`: whether every world size was measured, and the figures of each, which have no bar."""
    whole = status == 0 and all(n in points and points[n]["step_ms"] for n in wanted)
    rows = [
        Row(
            section="runs",
            what=what,
            measured=f"exit status {status}, world sizes {', '.join(map(str, sorted(points))) or 'none'}",
            bar="0, all of them",
            met=whole,
        )
    ]
    for n in sorted(points):
        comm, step = points[n].get("comm") or {}, points[n]["step_ms"]
        busbw = comm.get("busbw_gbit_s")
        texts = [f"step {step['value']:.2f} ms" if step else "no step"]
        texts += [f"busbw {busbw['value']:.3g} Gbit/s"] if busbw else []
        ranks = f"{n} rank{'' if n == 1 else 's'}"
        rows.append(Row(section="runs", what=f"{what}, {ranks}", measured=", ".join(texts)))
    return rows


def unjudged(rows: Iterable[Row]) -> list[Row]:
    """The same rows without verdicts, for a run without a GPU."""
    return [Row(**(asdict(row) | {"met": None})) for row in rows]


def passed(rows: Sequence[Row]) -> bool:
    """Whether bars were judged and none was missed."""
    judged = [row.met for row in rows if row.met is not None]
    return bool(judged) and all(judged)


def table(rows: Sequence[Row]) -> str:
    """The rows in columns, with a blank line between sections."""
    lines, before = [], ""
    for row in rows:
        if before and row.section != before:
            lines.append("")
        before = row.section
        verdict = {True: "met", False: "MISSED", None: "-"}[row.met]
        lines.append(f"{row.section:<10} {row.what:<42} {verdict:<7} {row.measured}")
        if row.bar:
            lines.append(f"{'':<61} bar {row.bar}")
    return "\n".join(lines)


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:g}"
