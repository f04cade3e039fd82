"""Efficiency over world size, of one run or of several."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling.analysis.results import Measured, Point
from scaling.report import text
from scaling.report.plots.base import (
    DASHES,
    HUES,
    SYMBOLS,
    Json,
    Plot,
    high,
    layout,
    line,
    low,
    note,
    safe,
    whiskers,
)

LABELS = 5
"""A curve with more points labels only its last one."""
BANDS = 2
"""More bands would cover each other, so more runs get error bars instead."""


def scaling_curve(series: Sequence[tuple[str, Sequence[Point]]]) -> Plot | None:
    """Efficiency over world size with its 95 % interval, one line a run, beside the ideal."""
    measured = [
        (name, [p for p in points if p.efficiency is not None and p.efficiency.tells])
        for name, points in series
    ]
    measured = [(name, points) for name, points in measured if points]
    sizes = sorted({p.world_size for _, points in measured for p in points})
    if len(sizes) < 2:
        return None
    ends = [sizes[0] / 1.25, sizes[-1] * 1.25]
    data = [line(ends, [100, 100], "$muted", "dot") | {"hoverinfo": "skip", "showlegend": False}]
    notes = [
        note(1, 100, "ideal", xref="x domain", xanchor="right", yanchor="bottom", font={"color": "$muted"})
    ]
    for index, (name, points) in enumerate(measured):
        data += _curve(name, points, index, many=len(measured))
    drawn = layout("world size (ranks, log scale)", "efficiency (% of ideal)")
    drawn["xaxis"] |= {"type": "log", "tickvals": sizes, "ticktext": [str(n) for n in sizes]}
    drawn["xaxis"]["range"] = [math.log10(end) for end in ends]
    highest = max(high(p.efficiency) for _, points in measured for p in points)
    drawn["yaxis"] |= {"range": [0, max(115, 115 * highest)], "ticksuffix": " %"}
    drawn |= {"annotations": notes, "showlegend": len(measured) > 1}
    at = ", ".join(
        f"{name + ' ' if len(measured) > 1 else ''}{text.ranks(p.world_size)} {text.percent(p.efficiency)}"
        for name, points in measured
        for p in points
    )
    interval = "The band is" if len(measured) <= BANDS else "Bars are"
    return Plot(
        name="efficiency",
        label=f"Efficiency against world size: {at}",
        caption=f"{interval} the 95 % interval of the measured efficiency; the dotted line is ideal scaling.",
        height_px=340 if len(measured) <= BANDS else 380,
        data=data,
        layout=drawn,
    )


def _curve(name: str, points: Sequence[Point], index: int, *, many: int) -> list[Json]:
    hue = HUES[index % len(HUES)]
    sure = [(p.world_size, p.efficiency) for p in points if p.efficiency is not None]
    found = line([n for n, _ in sure], [100 * m.value for _, m in sure], hue, DASHES[index % len(DASHES)])
    # One rank is at 100 % by definition, so it gets no label. Many labels would cover each other.
    named = {n for n, _ in sure if n > 1} if len(sure) <= LABELS else {sure[-1][0]}
    said = [text.percent(m) if n in named else "" for n, m in sure]
    found |= {"mode": "lines+markers+text" if many == 1 else "lines+markers", "name": safe(name)}
    found |= {"marker": {"size": 9, "symbol": SYMBOLS[index % len(SYMBOLS)], "color": hue}}
    found |= {"text": said, "textposition": "bottom center", "cliponaxis": False, "showlegend": many > 1}
    shown = [f"{text.ranks(n)}: {text.percent(m)}" for n, m in sure]
    found |= {"customdata": shown, "hovertemplate": "%{customdata}<extra>" + safe(name) + "</extra>"}
    if many > BANDS:
        return [found | {"error_y": whiskers([m for _, m in sure], hue, 100)}]
    return [_band(sure, hue), found]


def _band(sure: Sequence[tuple[int, Measured]], hue: str) -> Json:
    banded = [(n, m) for n, m in sure if m.half_width is not None or n == 1]
    x = [n for n, _ in banded]
    edges = [100 * high(m) for _, m in banded] + [100 * low(m) for _, m in reversed(banded)]
    band = {"x": x + x[::-1], "y": edges, "fill": "toself", "fillcolor": hue + "-soft", "mode": "lines"}
    return band | {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "type": "scatter"}
