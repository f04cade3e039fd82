"""How numbers and names read. Every renderer formats through here, so that one number reads one way."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from scaling.analysis.results import Loss, Measured, Parts, Point

NONE = "-"
DIGITS = 4
"""Significant digits of a value at most, however narrow its interval."""
PERCENT_DECIMALS = 2
"""Of a percentage at most: nobody acts on less."""
SKEWED = 1.5
"""An interval is written out when one side is so many times as long as the other."""

PARTS = {
    "input": "input",
    "forward": "forward",
    "backward": "backward",
    "exposed_transfer": "exposed transfer",
    "exposed_skew": "exposed skew",
    "optimizer": "optimizer",
    "host": "host",
}
CAUSES = {
    "small_batch": "smaller batch",
    "neighbours": "busy neighbours",
    "ddp_overhead": "DDP overhead",
    "straggler": "straggler",
    "link_latency": "link latency",
    "link_bandwidth": "link bandwidth",
    "overlap": "overlap slowdown",
    "input": "input",
    "host": "host",
    "clocks": "lower clocks",
    "unexplained": "unexplained",
}
STATUSES = {
    "planned": "not started",
    "oom": "out of memory",
    "timeout": "timed out",
    "interrupted": "stopped",
}

COLUMNS: tuple[tuple[str, str], ...] = (
    ("ranks", ""),
    ("hosts", ""),
    ("step", "ms"),
    ("samples", "1/s"),
    ("speedup", ""),
    ("efficiency", "%"),
    ("transfer", "ms"),
    ("skew", "ms"),
    ("busbw", "Gbit/s"),
    ("status", ""),
)
"""Name and unit of the key figures of a world size, in the order of `key_figures`."""
COLUMNS_NOTE = "transfer, skew: what a step waits for (exposed); ±: half of the 95 % interval"

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_INSIDE_QUANTITY = re.compile(r" (?=±)|(?<=\d) (?=%|(?:[mu]s|[kMG]?bit/s|[KMG]?i?B|ranks?)\b)")


def plain(text: str) -> str:
    """Outside text without escape sequences and control characters."""
    return _ESCAPES.sub("", text)


def bound(text: str) -> str:
    """With no-break spaces inside quantities: a number, its unit and its interval stay on one line."""
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
    """Decimals that the interval bears: one digit of the half-width, two where it starts with 1."""
    half = measured.half_width
    if not half or not math.isfinite(half):
        return None
    digits, place = f"{half * scale:.1e}".split("e")
    borne = -int(place) + (float(digits) < 2)
    if scale == 100:
        borne = min(borne, PERCENT_DECIMALS)
    value = abs(measured.value * scale)
    most = DIGITS - 1 - math.floor(math.log10(value)) if value > 0 else borne
    return max(0, min(borne, most))


def value_of(measured: Measured | None, scale: float = 1.0) -> str:
    """The value alone, with the digits that its interval bears: `66.2`."""
    return NONE if measured is None else number(measured.value * scale, decimals_of(measured, scale))


def cell(measured: Measured | None, scale: float = 1.0) -> str:
    """A table's cell: the value and half of the interval's length, `66.2 ±0.8`."""
    if measured is None:
        return NONE
    decimals = decimals_of(measured, scale)
    if decimals is None or measured.half_width is None:
        return value_of(measured, scale)
    # Never ±0: where the digits run out, the last one shown is the bound.
    half = max(measured.half_width * scale, 10.0**-decimals)
    return f"{value_of(measured, scale)} ±{number(half, decimals)}"


def quantity(measured: Measured | None, unit: str = "", scale: float = 1.0) -> str:
    """Prose: `66.2 ms ±0.8`, `66.2 ms [65.1, 67.9]` where the sides differ, `-` for None."""
    if measured is None:
        return NONE
    value, _, half = cell(measured, scale).partition(" ±")
    shown = f"{value} {unit}".rstrip()
    if not half or measured.low is None or measured.high is None:
        return shown
    short, long = sorted((measured.value - measured.low, measured.high - measured.value))
    decimals = decimals_of(measured, scale)
    # Sides that differ by less than a digit shown read as one.
    if long > SKEWED * short and (long - short) * scale > 10.0 ** -(decimals or 0):
        low, high = (number(edge * scale, decimals) for edge in (measured.low, measured.high))
        return f"{shown} [{low}, {high}]"
    return f"{shown} ±{half}"


def percent(measured: Measured | None) -> str:
    """A fraction of 1 as `61.2 % ±1.2`."""
    return quantity(measured, "%", 100)


def undistinguished(ratio: Measured | None, *, distinguishable: bool) -> str:
    """Why a ratio of throughputs counts for nothing; empty where it counts, and where there is none."""
    if ratio is None or distinguishable:
        return ""
    return "no interval" if ratio.low is None else "not distinguishable"


def change(ratio: Measured | None) -> str:
    """A ratio near 1 as a signed change: `+0.3 % ±0.4`."""
    if ratio is None:
        return NONE
    low, high = (None if edge is None else edge - 1 for edge in (ratio.low, ratio.high))
    return signed(percent(Measured(ratio.value - 1, low, high, ratio.n)))


def signed(text: str) -> str:
    """A formatted number with its sign."""
    return text if text.startswith(("-", "0 ", "0.0 ")) else f"+{text}"


def ranks(world_size: int) -> str:
    """`1 rank`, `4 ranks`."""
    return count(world_size, "rank")


def count(many: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{many} {noun}" if many == 1 else f"{many} {noun}s"


def cause_name(cause: str) -> str:
    """A loss cause or a verdict in words."""
    return CAUSES.get(cause, plain(cause).replace("_", " "))


def status_name(status: str) -> str:
    """How a trial ended, in words."""
    return STATUSES.get(status, plain(status))


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def parts_of(parts: Parts) -> tuple[tuple[str, Measured], ...]:
    """(key, ms) of the parts of a step that were measured, in the order in which they run."""
    found = ((key, getattr(parts, key)) for key in PARTS)
    return tuple((key, value) for key, value in found if value is not None)


def losses_of(loss: Loss) -> tuple[tuple[str, Measured | None], ...]:
    """(cause, fraction) of the known causes; `unexplained` always, known or not."""
    found = ((key, getattr(loss, key)) for key in CAUSES)
    return tuple((key, value) for key, value in found if value is not None or key == "unexplained")


def key_figures(point: Point) -> tuple[str, ...]:
    """The cells of one world size, under COLUMNS."""
    return (
        str(point.world_size),
        str(point.hosts),
        cell(point.step_ms),
        value_of(point.samples_per_s),
        value_of(point.speedup),
        cell(point.efficiency, 100),
        value_of(point.parts_ms.exposed_transfer),
        value_of(point.parts_ms.exposed_skew),
        value_of(point.comm.busbw_gbit_s if point.comm else None),
        status_name(point.status),
    )


def key_table(points: Sequence[Point]) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of the key figures; the status is left out where every trial is done."""
    shown = len(COLUMNS) - all(p.status == "done" for p in points)
    return COLUMNS[:shown], tuple(key_figures(p)[:shown] for p in points)


def moment(iso: str) -> str:
    """`2026-03-02T10:15:00Z` as `2026-03-02 10:15 UTC`; anything else as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)[\d:.]*(Z|\+00:00)", iso)
    return f"{match.group(1)} {match.group(2)} UTC" if match else plain(iso)
