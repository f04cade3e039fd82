"""The key figures of a run, the waterfall and the parts of a step, computed once for every renderer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.results import Loss, Measured, Point, StepParts
from scaling.report import text
from scaling.report.model import Bar, Column, Figure, Table, tabulated
from scaling.report.text import cell, status_name, value_of


def _busbw(point: Point) -> Measured | None:
    return point.comm.busbw_gbit_s if point.comm else None


COLUMNS: tuple[Column[Point], ...] = (
    ("ranks", "", lambda p: str(p.world_size)),
    ("hosts", "", lambda p: str(p.hosts)),
    ("step", "ms", lambda p: cell(p.step_ms)),
    ("samples", "1/s", lambda p: value_of(p.samples_per_s)),
    ("tokens", "1/s", lambda p: value_of(p.tokens_per_s)),
    ("speedup", "", lambda p: value_of(p.speedup)),
    ("efficiency", "%", lambda p: cell(p.efficiency, 100)),
    ("transfer", "ms", lambda p: value_of(p.parts_ms.exposed_transfer)),
    ("skew", "ms", lambda p: value_of(p.parts_ms.exposed_skew)),
    ("busbw", "Gbit/s", lambda p: value_of(_busbw(p))),
    ("bytes", "GB/s", lambda p: value_of(_busbw(p), 1 / 8)),
    ("status", "", lambda p: status_name(p.status)),
)
COMPARED = ("ranks", "step", "samples", "efficiency", "transfer", "skew", "busbw", "bytes")
"""Columns where the key figures of several runs stand below each other."""
NOTE = "transfer, skew: what a step waits for (exposed), mean of the ranks; ±: half of the 95 % interval"


def key_table(points: Sequence[Point]) -> Table:
    """The key figures of one run.

    Status stands where a trial is not done, in the place of GB/s; tokens where they are known.
    """
    all_done = all(p.status == "done" for p in points)
    shown = {"status": not all_done, "bytes": all_done, "tokens": any(p.tokens_per_s for p in points)}
    return tabulated(points, COLUMNS, shown, label="Key figures", note=NOTE)


def compared_table(series: Sequence[tuple[str, Sequence[Point]]]) -> Table:
    """The key figures of several runs, a row for each run and world size."""
    compared = [column for column in COLUMNS if column[0] in COMPARED]
    table = tabulated([point for _, points in series for point in points], compared)
    names = [run for run, points in series for _ in points]
    rows = tuple((name, *row) for name, row in zip(names, table.rows, strict=True))
    return Table(columns=(("run", ""), *table.columns), rows=rows, label="Key figures", note=NOTE)


IDEAL, MEASURED, PREDICTED = "ideal", "measured", "predicted"
ENDS = (MEASURED, PREDICTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """One row of a waterfall, in fractions of the step: it leads from `start` to `end`."""

    cause: str
    """A loss cause, or IDEAL, MEASURED or PREDICTED."""
    value: Measured | None
    start: float
    end: float

    @property
    def name(self) -> str:
        return self.cause if self.cause in (IDEAL, *ENDS) else text.cause_name(self.cause)


def waterfall(loss: Loss, efficiency: Measured | None, end: str = MEASURED) -> tuple[Fall, ...]:
    """From the ideal down to what was measured or predicted (`end`): each cause begins where the last one ended."""
    falls = [Fall(cause=IDEAL, value=Measured(1.0), start=0.0, end=1.0)]
    level = 1.0
    for cause, value in text.losses_of(loss):
        below = level - (value.value if value else 0.0)
        falls.append(Fall(cause=cause, value=value, start=level, end=below))
        level = below
    if efficiency is not None:
        falls.append(Fall(cause=end, value=efficiency, start=0.0, end=efficiency.value))
    return tuple(falls)


def waterfall_bars(loss: Loss, efficiency: Measured | None, end: str = MEASURED) -> Figure:
    """The waterfall as bars of characters."""
    falls = waterfall(loss, efficiency, end)
    highest = max(max(row.start, row.end) for row in falls if row.cause not in ENDS)
    bars = tuple(
        Bar(
            name=row.name,
            value=text.quantity(row.value, scale=100),
            start=max(0.0, row.start / highest),
            end=max(0.0, row.end / highest),
            tone="ideal" if row.cause == IDEAL else "measured" if row.cause in ENDS else "loss",
        )
        for row in falls
    )
    return Figure(bars=bars, heading=("loss", "% of the step"))


def part_bars(parts: StepParts) -> Figure:
    """The parts of a step as bars of characters, in the order in which they run."""
    measured_parts = text.parts_of(parts)
    whole = sum(value.value for _, value in measured_parts)
    bars = tuple(
        Bar(
            name=text.PARTS[key],
            value=text.quantity(value),
            start=0.0,
            end=value.value / whole if whole > 0 else 0.0,
            tone="part",
        )
        for key, value in measured_parts
    )
    return Figure(bars=bars, heading=("part of a step", "ms"))
