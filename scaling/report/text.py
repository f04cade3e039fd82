"""Numbers and names as text. Everything is formatted here, so that a number reads the same in every report.

`scaling plan` needs this without the types of results, which are slow to load.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scaling import units
from scaling.plain import plain
from scaling.report.model import Bar, Figure
from scaling.settings.cases import batches
from scaling.settings.run import Spec
from scaling.units import UNKNOWN, format_bytes, spans

if TYPE_CHECKING:
    from scaling.analysis.results import Loss, Measured, StepParts

NONE = "-"
PERCENT_DECIMALS = 2
"""Decimals of a percentage at most; finer differences matter to no decision."""
SKEWED = 1.5
"""An interval is written out where one side is more than this many times as long as the other."""

PARTS = {
    "input": "input",
    "forward": "forward",
    "backward": "backward",
    "exposed_transfer": "exposed transfer",
    "exposed_skew": "exposed skew",
    "exposed_enqueue": "waiting for a launch",
    "optimizer": "optimizer",
    "host": "host",
}
CAUSES = {
    "small_batch": "smaller batch",
    "neighbours": "busy neighbours",
    "imbalance": "token imbalance",
    "overlap": "overlap slowdown",
    "clocks": "lower clocks",
}
"""Causes that are not called by the words of their keys."""
STATUSES = {
    "planned": "not started",
    "oom": "out of memory",
    "left_out": "left out",
    "timeout": "timed out",
    "interrupted": "stopped",
}

_INSIDE_QUANTITY = re.compile(r" (?=±)|(?<=\d) (?=%|(?:[mu]s|[kMG]?bit/s|[KMG]?i?B|ranks?)\b)")


def bound(text: str) -> str:
    """Text with no-break spaces inside quantities, so that a number, its unit and its interval stay on one line."""
    return _INSIDE_QUANTITY.sub("\N{NO-BREAK SPACE}", text)


def number(value: float, decimals: int | None = None) -> str:
    """A number without interval: three significant digits unless the decimals are given."""
    if not math.isfinite(value):
        return NONE
    if decimals is None:
        decimals = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def decimals_of(measured: Measured, scale: float = 1.0) -> int | None:
    """Decimals that the interval justifies, at most PERCENT_DECIMALS for a percentage; None without an interval.

    A percentage that has no interval and would show as 0 with them gets PERCENT_DECIMALS as well.
    """
    decimals = measured.decimals(scale)
    if decimals is not None and measured.surely_above(0) and (measured.half_width or 0.0) > measured.value:
        decimals = max(decimals, -math.floor(math.log10(measured.least * scale)))  # it must not show as 0
    if scale != 100:
        return decimals
    if decimals is None:
        return PERCENT_DECIMALS if 0 < abs(measured.value) * scale < 10.0**-PERCENT_DECIMALS else None
    return min(decimals, PERCENT_DECIMALS)


def value_of(measured: Measured | None, scale: float = 1.0) -> str:
    """The value alone, with the digits that its interval bears: `66.2`; `unknown` where the interval tells nothing."""
    if measured is None:
        return NONE
    return number(measured.value * scale, decimals_of(measured, scale)) if measured.tells else UNKNOWN


def cell(measured: Measured | None, scale: float = 1.0) -> str:
    """A table's cell: the value and half of the interval's length, `66.2 ±0.8`."""
    if measured is None:
        return NONE
    decimals = decimals_of(measured, scale)
    if decimals is None or measured.half_width is None or not measured.tells:
        return value_of(measured, scale)
    # Never ±0: the half-width is at least one unit of the last digit.
    half = max(measured.half_width * scale, 10.0**-decimals)
    return f"{value_of(measured, scale)} ±{number(half, decimals)}"


def quantity(measured: Measured | None, unit: str = "", scale: float = 1.0) -> str:
    """In a sentence: `66.2 ms ±0.8`, `66.2 ms [65.1, 67.9]` where the sides differ, `-` for None, `unknown`."""
    if measured is None or not measured.tells:
        return value_of(measured)
    value, _, half = cell(measured, scale).partition(" ±")
    shown = f"{value} {unit}".rstrip()
    if not half or measured.interval is None:
        return shown
    short, long = sorted(abs(edge - measured.value) for edge in measured.interval)
    decimals = decimals_of(measured, scale)
    # Sides that differ by less than the last digit shown count as equal.
    if long > SKEWED * short and (long - short) * scale > 10.0 ** -(decimals or 0):
        low, high = (number(edge * scale, decimals) for edge in measured.interval)
        return f"{shown} [{low}, {high}]"
    return f"{shown} ±{half}"


def percent(measured: Measured | None) -> str:
    """A fraction of 1 as `61.2 % ±1.2`."""
    return quantity(measured, "%", 100)


def undistinguished(ratio: Measured | None, *, distinguishable: bool) -> str:
    """Why a ratio of throughputs shows no difference; empty where it shows one, and where there is no ratio."""
    if ratio is None or distinguishable:
        return ""
    return "no interval" if ratio.low is None else "not distinguishable"


def change(ratio: Measured | None) -> str:
    """A ratio near 1 as a signed change: `+0.3 % ±0.4`."""
    if ratio is None:
        return NONE
    return signed(percent(ratio - 1)) if ratio.tells else UNKNOWN


def signed(text: str) -> str:
    """A formatted number with its sign."""
    return text if text.startswith(("-", "0 ", "0.0 ", UNKNOWN)) else f"+{text}"


count, ranks = units.count, units.ranks


def ranges(numbers: Sequence[int]) -> str:
    """Sorted numbers with their ranges: `0-3, 8`; empty for none."""
    return ", ".join(spans(numbers))


def cause_name(cause: str) -> str:
    """A loss cause or a verdict in words."""
    return CAUSES.get(cause, plain(cause).replace("_", " "))


def status_name(status: str) -> str:
    """How a trial ended, in words."""
    return STATUSES.get(status, plain(status))


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def headline(text: str) -> str:
    """Text with a capital and no full stop."""
    return text[:1].upper() + text[1:].removesuffix(".")


def parts_of(parts: StepParts) -> tuple[tuple[str, Measured], ...]:
    """(key, ms) of the parts of a step that were measured, in the order in which they run."""
    return tuple((key, value) for key in PARTS if (value := getattr(parts, key)) is not None)


def losses_of(loss: Loss) -> tuple[tuple[str, Measured | None], ...]:
    """(cause, fraction) of the known causes; `unexplained` always, known or not."""
    pairs = ((field.name, getattr(loss, field.name)) for field in dataclasses.fields(loss))
    return tuple((key, value) for key, value in pairs if value is not None or key == "unexplained")


def moment(iso: str) -> str:
    """`2026-03-02T10:15:00Z` as `2026-03-02 10:15 UTC`; anything else as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*(Z|\+00:00)", iso)
    return f"{match.group(1)} {match.group(2)} UTC" if match else plain(iso)


WIDTH = 80
NAME = 17
NUMBER = 18
BAR = WIDTH - 2 - NAME - NUMBER - 2 - 1

LESS = "░"
"""What a gain is drawn with."""


def heading(figure: Figure) -> str:
    """What the bars show, and their unit above the values."""
    what, (unit, _, more) = figure.heading[0], figure.heading[1].partition(" ")
    return f"#   {what:<{NAME - 2}}{unit:>6} {more}".rstrip()


def line(bar: Bar) -> tuple[str, str]:
    """Name, value and indent of one bar, and the bar itself, as many characters as it is long."""
    start, end = round(BAR * bar.start), round(BAR * bar.end)
    block = LESS if bar.tone == "loss" and end > start else "█"
    value, _, interval = bar.value.partition(" ")
    figures = f"{value:>6} {interval}"
    indent = " " * min(start, end)
    return f"  {bar.name:<{NAME}}{figures:<{NUMBER}}  {indent}", block * abs(end - start) or "▏"


def precisions(spec: Spec) -> str:
    """All precisions that are measured."""
    return ", ".join(spec.vary.precision or (spec.precision,))


def case_batches(spec: Spec) -> str:
    """The batches of a run by cases, and its task."""
    listed = "the largest that fits, and up to it" if spec.batch_max else ", ".join(map(str, batches(spec)))
    limit = f", in {format_bytes(spec.memory_limit_bytes)} a rank" if spec.memory_limit_bytes else ""
    return f"{listed}{limit}, each a rank; {spec.task}"
