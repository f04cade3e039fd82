"""The waterfall and the parts of a step, computed once for every renderer."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results import Loss, Measured, StepParts
from scaling.report import text
from scaling.report.model import Bar, Figure

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
    found = [Fall(cause=IDEAL, value=Measured(1.0), start=0.0, end=1.0)]
    level = 1.0
    for cause, value in text.losses_of(loss):
        below = level - (value.value if value else 0.0)
        found.append(Fall(cause=cause, value=value, start=level, end=below))
        level = below
    if efficiency is not None:
        found.append(Fall(cause=end, value=efficiency, start=0.0, end=efficiency.value))
    return tuple(found)


def waterfall_bars(loss: Loss, efficiency: Measured | None, end: str = MEASURED) -> Figure:
    """The waterfall as bars of characters."""
    found = waterfall(loss, efficiency, end)
    highest = max(max(row.start, row.end) for row in found if row.cause not in ENDS)
    bars = tuple(
        Bar(
            name=row.name,
            value=text.quantity(row.value, scale=100),
            start=max(0.0, row.start / highest),
            end=max(0.0, row.end / highest),
            tone="ideal" if row.cause == IDEAL else "measured" if row.cause in ENDS else "loss",
        )
        for row in found
    )
    return Figure(bars=bars, heading=("loss", "% of the step"))


def part_bars(parts: StepParts) -> Figure:
    """The parts of a step as bars of characters, in the order in which they run."""
    found = text.parts_of(parts)
    whole = sum(value.value for _, value in found)
    bars = tuple(
        Bar(
            name=text.PARTS[key],
            value=text.quantity(value),
            start=0.0,
            end=value.value / whole if whole > 0 else 0.0,
            tone="part",
        )
        for key, value in found
    )
    return Figure(bars=bars, heading=("part of a step", "ms"))
