"""Efficiency over world size, and bars of what a step is lost to or what two steps differ by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.results import Measured, Point
from scaling.report import text
from scaling.report.key_figures import IDEAL, MEASURED, Fall
from scaling.report.key_figures import waterfall as falls
from scaling.report.plots.base import (
    DASHES,
    HUES,
    SYMBOLS,
    Json,
    Plot,
    bar_ends,
    hatch,
    layout,
    line,
    note,
    safe,
    slug,
    whiskers,
)

LABELS = 5
"""A curve with more points labels only its last one."""
BANDS = 2
"""More bands would cover each other, so more runs get error bars instead."""


def scaling_curve(series: Sequence[tuple[str, Sequence[Point]]]) -> Plot | None:
    """Efficiency over world size with its 95 % interval, one line a run, beside the ideal."""
    curves: list[tuple[str, list[tuple[int, Measured]]]] = []
    for name, points in series:
        sure = [(p.world_size, p.efficiency) for p in points if p.efficiency and p.efficiency.tells]
        curves += [(name, sure)] if sure else []
    sizes = sorted({n for _, sure in curves for n, _ in sure})
    if len(sizes) < 2:
        return None
    many, ends = len(curves), [sizes[0] / 1.25, sizes[-1] * 1.25]
    data = [line(ends, [100, 100], "$muted", "dot") | {"hoverinfo": "skip", "showlegend": False}]
    notes = [
        note(1, 100, "ideal", xref="x domain", xanchor="right", yanchor="bottom", font={"color": "$muted"})
    ]
    for index, (name, sure) in enumerate(curves):
        data += _curve(name, sure, index, many=many)
    drawn = layout("world size (ranks, log scale)", "efficiency (% of ideal)")
    drawn["xaxis"] |= {"type": "log", "tickvals": sizes, "ticktext": [str(n) for n in sizes]}
    drawn["xaxis"]["range"] = [math.log10(end) for end in ends]
    highest = max(m.most for _, sure in curves for _, m in sure)
    drawn["yaxis"] |= {"range": [0, max(115, 115 * highest)], "ticksuffix": " %"}
    drawn |= {"annotations": notes, "showlegend": many > 1}
    at = ", ".join(
        f"{name + ' ' if many > 1 else ''}{text.ranks(n)} {text.percent(m)}"
        for name, sure in curves
        for n, m in sure
    )
    return Plot(
        name="efficiency",
        label=f"Efficiency against world size: {at}",
        caption=f"{'The band is' if many <= BANDS else 'Bars are'} the 95 % interval of the measured efficiency; "
        "the dotted line is ideal scaling.",
        height_px=340 if many <= BANDS else 380,
        data=data,
        layout=drawn,
    )


def _curve(name: str, sure: Sequence[tuple[int, Measured]], index: int, *, many: int) -> list[Json]:
    hue = HUES[index % len(HUES)]
    trace = line([n for n, _ in sure], [100 * m.value for _, m in sure], hue, DASHES[index % len(DASHES)])
    # One rank is at 100 % by definition, so it gets no label. Many labels would cover each other.
    named = {n for n, _ in sure if n > 1} if len(sure) <= LABELS else {sure[-1][0]}
    labels = [text.percent(m) if n in named else "" for n, m in sure]
    trace |= {"mode": "lines+markers+text" if many == 1 else "lines+markers", "name": safe(name)}
    trace |= {"marker": {"size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)], "color": hue}}
    trace |= {"text": labels, "textposition": "bottom center", "cliponaxis": False, "showlegend": many > 1}
    shown = [f"{text.ranks(n)}: {text.percent(m)}" for n, m in sure]
    trace |= {"customdata": shown, "hovertemplate": "%{customdata}<extra>" + safe(name) + "</extra>"}
    if many > BANDS:
        return [trace | {"error_y": whiskers([m for _, m in sure], hue, 100)}]
    return [_band(sure, hue), trace]


def _band(sure: Sequence[tuple[int, Measured]], hue: str) -> Json:
    banded = [(n, m) for n, m in sure if m.half_width is not None or n == 1]
    x = [n for n, _ in banded]
    edges = [100 * m.most for _, m in banded] + [100 * m.least for _, m in reversed(banded)]
    band = {"x": x + x[::-1], "y": edges, "fill": "toself", "fillcolor": hue + "-soft", "mode": "lines"}
    return band | {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "type": "scatter"}


AROUND_PX = 92
"""Height of all but the bars. With less of it plotly takes its margins from few bars, and draws the axis' name over its
ticks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    length: float
    label: str
    hue: str
    pattern: str = ""
    start: float = 0.0
    end: tuple[float, float] | None = None
    """The interval of where the bar ends."""


def waterfall(point: Point) -> Plot | None:
    """From ideal to measured: each bar begins where the last one ended."""
    if point.loss is None:
        return None
    rows = [_row(fall) for fall in falls(point.loss, point.efficiency)]
    edges_of = [at for row in rows for at in (row.start, row.start + row.length, *(row.end or ()))]
    axis = {"range": [min(0.0, *edges_of), max(edges_of)]}
    caption = (
        "What each cause takes of the step, from ideal to measured. Dotted: time won; hatched: unexplained; "
        "thin lines: 95 % intervals."
    )
    name = slug("waterfall", point.world_size)
    what = f"Loss waterfall at {text.ranks(point.world_size)}"
    return _bars(name, what, rows, "% of the step", axis, caption)


def _row(fall: Fall) -> _Row:
    begin, end = 100 * fall.start, 100 * fall.end
    hue, pattern = ("$loss", "") if end <= begin else ("$gain", ".")
    if fall.cause in (IDEAL, MEASURED):
        hue, pattern = "$ideal" if fall.cause == IDEAL else "$accent", ""
    interval = fall.value.interval if fall.value else None
    if interval is not None:
        low, high = (100 * edge for edge in interval)
        interval = (low, high) if fall.cause == MEASURED else (begin - high, begin - low)
    return _Row(
        name=fall.name,
        start=min(begin, end),
        length=abs(end - begin),
        label=text.percent(fall.value),
        hue=hue,
        pattern="/" if fall.cause == "unexplained" else pattern,
        end=interval,
    )


def differences(causes: Sequence[tuple[str, Measured]], world_size: int) -> Plot | None:
    """What makes up the difference of two steps: bars to the left are time saved."""
    rows = [
        _Row(
            name=text.cause_name(cause),
            length=value.value,
            label=text.signed(text.quantity(value, "ms")),
            hue="$loss" if value.value >= 0 else "$gain",
            pattern="" if value.value >= 0 else ".",
            end=value.interval,
        )
        for cause, value in causes
    ]
    if not rows:
        return None
    axis = {"zeroline": True, "zerolinecolor": "$muted"}
    caption = "Dotted bars: less time in the other run; solid bars: more; thin lines: 95 % intervals."
    what = f"Difference of the step by cause at {text.ranks(world_size)}"
    return _bars(slug("difference", world_size), what, rows, "ms of a step, other - base", axis, caption)


def _bars(name: str, what: str, rows: Sequence[_Row], unit: str, axis: Json, caption: str) -> Plot:
    """Horizontal bars with their numbers in a column on the right; the axis is named `unit`."""
    drawn = layout(unit, None)
    drawn["barmode"] = "overlay"
    drawn["xaxis"] |= axis
    drawn["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    drawn["annotations"] = [note(1, r.name, r.label, xref="paper", yanchor="middle", xshift=8) for r in rows]
    character_px = 6.9
    drawn["margin"]["r"] = 16 + round(character_px * max(len(r.label) for r in rows))
    return Plot(
        name=name,
        label=f"{what}: " + ", ".join(f"{r.name} {r.label}" for r in rows),
        caption=caption,
        height_px=AROUND_PX + 27 * len(rows),
        data=[*map(_bar, rows), *([_ends(rows)] if any(r.end for r in rows) else [])],
        layout=drawn,
    )


def _bar(row: _Row) -> Json:
    bar: Json = {"type": "bar", "orientation": "h", "y": [row.name], "x": [row.length], "base": [row.start]}
    bar["marker"] = {"color": row.hue, "pattern": hatch(row.pattern)}
    return bar | {"customdata": [row.label], "hovertemplate": "%{y}: %{customdata}<extra></extra>"}


def _ends(rows: Sequence[_Row]) -> Json:
    """The intervals of where the bars end."""
    placed = [(row.name, *row.end) for row in rows if row.end]
    middle = [(first + last) / 2 for _, first, last in placed]
    half = [(last - first) / 2 for _, first, last in placed]
    return bar_ends(middle, [name for name, *_ in placed], half, width=3)
