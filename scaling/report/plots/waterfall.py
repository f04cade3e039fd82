"""Bars that name what a step is lost to, or what two steps differ by, with their numbers beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.analysis.results import Measured, Point
from scaling.report import text
from scaling.report.plots.base import Json, Plot, hatch, high, layout, low, note, slug

_CHARACTER_PX = 6.9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    length: float
    said: str
    hue: str
    pattern: str = ""
    start: float = 0.0
    end: tuple[float, float] | None = None
    """The interval of where the bar ends."""


def waterfall(point: Point) -> Plot | None:
    """From ideal to measured: each bar begins where the last one ended."""
    if point.loss is None:
        return None
    rows = [_Row(name="ideal", length=100, said="100 %", hue="$ideal")]
    level = 100.0
    for cause, value in text.losses_of(point.loss):
        share = 100 * value.value if value else 0.0
        hue, pattern = ("$loss", "") if share >= 0 else ("$gain", ".")
        row = _Row(
            name=text.cause_name(cause),
            start=min(level, level - share),
            length=abs(share),
            said=text.percent(value),
            hue=hue,
            pattern="/" if cause == "unexplained" else pattern,
            end=(level - 100 * high(value), level - 100 * low(value)) if _sure(value) else None,
        )
        rows.append(row)
        level -= share
    if point.efficiency is not None:
        measured = point.efficiency
        edges = (100 * low(measured), 100 * high(measured)) if _sure(measured) else None
        said = text.percent(measured)
        rows.append(_Row(name="measured", length=100 * measured.value, said=said, hue="$accent", end=edges))
    edges_of = [at for row in rows for at in (row.start, row.start + row.length, *(row.end or ()))]
    axis = {"title": {"text": "% of the step"}, "range": [min(0.0, *edges_of), max(edges_of)]}
    caption = (
        "What each cause takes of the step, from ideal to measured. Dotted: time won; hatched: unexplained; "
        "thin lines: 95 % intervals."
    )
    name = slug("waterfall", point.world_size)
    return _bars(name, f"Loss waterfall at {text.ranks(point.world_size)}", rows, axis, caption)


def differences(causes: Sequence[tuple[str, Measured]], world_size: int) -> Plot | None:
    """What makes up the difference of two steps: bars to the left are time saved."""
    rows = [
        _Row(
            name=text.cause_name(cause),
            length=value.value,
            said=text.signed(text.quantity(value, "ms")),
            hue="$loss" if value.value >= 0 else "$gain",
            pattern="" if value.value >= 0 else ".",
            end=(low(value), high(value)) if _sure(value) else None,
        )
        for cause, value in causes
    ]
    if not rows:
        return None
    axis = {"title": {"text": "ms of a step, other - base"}, "zeroline": True, "zerolinecolor": "$muted"}
    caption = "Dotted bars: less time in the other run; solid bars: more; thin lines: 95 % intervals."
    what = f"Difference of the step by cause at {text.ranks(world_size)}"
    return _bars(slug("difference", world_size), what, rows, axis, caption)


def _sure(measured: Measured | None) -> bool:
    return measured is not None and measured.half_width is not None


def _bars(name: str, what: str, rows: Sequence[_Row], axis: Json, caption: str) -> Plot:
    """Horizontal bars with their numbers in a column on the right."""
    drawn = layout("", None)
    drawn["barmode"] = "overlay"
    drawn["xaxis"] |= axis
    drawn["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    drawn["annotations"] = [note(1, r.name, r.said, xref="paper", yanchor="middle", xshift=8) for r in rows]
    drawn["margin"]["r"] = 16 + round(_CHARACTER_PX * max(len(r.said) for r in rows))
    return Plot(
        name=name,
        label=f"{what}: " + ", ".join(f"{r.name} {r.said}" for r in rows),
        caption=caption,
        height_px=70 + 27 * len(rows),
        data=[*map(_bar, rows), *([_ends(rows)] if any(r.end for r in rows) else [])],
        layout=drawn,
    )


def _bar(row: _Row) -> Json:
    bar: Json = {"type": "bar", "orientation": "h", "y": [row.name], "x": [row.length], "base": [row.start]}
    bar["marker"] = {"color": row.hue, "pattern": hatch(row.pattern)}
    return bar | {"customdata": [row.said], "hovertemplate": "%{y}: %{customdata}<extra></extra>"}


def _ends(rows: Sequence[_Row]) -> Json:
    """The intervals of where the bars end."""
    known = [(row.name, *row.end) for row in rows if row.end]
    middle = [(first + last) / 2 for _, first, last in known]
    half = [(last - first) / 2 for _, first, last in known]
    error = {"type": "data", "array": half, "color": "$fg", "thickness": 1, "width": 3}
    marks: Json = {"type": "scatter", "mode": "markers", "x": middle, "y": [name for name, *_ in known]}
    return marks | {
        "error_x": error,
        "marker": {"size": 1, "color": "$fg"},
        "hoverinfo": "skip",
        "showlegend": False,
    }
