"""What every figure is made of, as plotly's own JSON.

Colours are written `$name` and stand for the page's CSS variable `--name`: the page's script puts
them in, so that one figure serves light, dark and print. Series differ in more than colour.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scaling.plain import plain

if TYPE_CHECKING:
    from scaling.analysis.results import Measured

Json = dict[str, Any]

DASHES = ("solid", "dash", "dashdot", "longdash")
SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up")
HUES = ("$accent", "$second", "$third", "$fourth")
PATTERNS = {
    "input": ".",
    "exposed_transfer": "/",
    "exposed_skew": "x",
    "exposed_enqueue": "+",
    "optimizer": "-",
    "host": "|",
}
"""Patterns by which the parts of a step differ without colour; the others have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure. `label` describes it for screen readers; `name` is the name of its file."""

    name: str
    label: str
    caption: str
    height_px: int
    data: list[Json]
    layout: Json
    legend: tuple[tuple[str, str], ...] = ()
    """(part, label) of each area. The page draws this legend, because plotly's does not wrap."""


def slug(*words: object) -> str:
    """A file's name of some words: `fabric-between-hosts-4`."""
    return re.sub(r"[^a-z0-9]+", "-", " ".join(map(str, words)).lower()).strip("-")


def bar(y: Sequence[Any], x: Sequence[Any], key: str, inside: list[str]) -> Json:
    """Horizontal bars of one part of a step."""
    name = key.replace("_", "-")
    marker: Json = {"color": f"${name}", "line": {"color": "$bg", "width": 1}}
    marker["pattern"] = hatch(PATTERNS.get(key, ""))
    trace: Json = {"type": "bar", "orientation": "h", "y": y, "x": x, "marker": marker, "text": inside}
    trace |= {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    return trace | {"insidetextfont": {"color": f"$on-{name}", "size": 11}}


def hatch(shape: str) -> Json:
    """A pattern over an area's colour."""
    return {"shape": shape, "fgcolor": "$hatch", "fillmode": "overlay", "size": 7, "solidity": 0.22}


def line(x: Sequence[float], y: Sequence[float], hue: str, dash: str) -> Json:
    """A line without markers."""
    look = {"color": hue, "dash": dash, "width": 2}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": look, "showlegend": True}


def whiskers(values: Sequence[Measured], hue: str, scale: float = 1.0) -> Json:
    """The intervals of a trace's points."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [scale * (v.most - v.value) for v in values],
        "arrayminus": [scale * (v.value - v.least) for v in values],
        "color": hue,
        "thickness": 1,
        "width": 3,
    }


def bar_ends(x: Sequence[float], y: Sequence[str], half: Sequence[float], width: int) -> Json:
    """The intervals of where bars end."""
    error = {"type": "data", "array": half, "color": "$fg", "thickness": 1, "width": width}
    marks: Json = {"type": "scatter", "mode": "markers", "x": x, "y": y, "error_x": error}
    return marks | {"marker": {"size": 1, "color": "$fg"}, "hoverinfo": "skip", "showlegend": False}


def note(x: float, y: float | str, label: str, **place: Any) -> Json:
    annotation = {"x": x, "y": y, "yref": "y", "xanchor": "left", "text": label, "showarrow": False}
    return annotation | place


def layout(x: str, y: str | None) -> Json:
    """Axes and margins; axes are named with their units."""
    axis = {
        "automargin": True,
        "gridcolor": "$grid",
        "linecolor": "$grid",
        "zeroline": False,
        "fixedrange": True,
    }
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "$fg"},
        "margin": {"l": 4, "r": 12, "t": 8, "b": 4},
        "xaxis": axis | {"title": {"text": x, "standoff": 8}},
        "yaxis": axis | ({"title": {"text": y, "standoff": 10}} if y else {}),
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
        "hoverlabel": {"bgcolor": "$bg", "bordercolor": "$muted", "font": {"color": "$fg"}},
        "bargap": 0.3,
        "showlegend": False,
        "dragmode": False,
    }


def safe(outside: str) -> str:
    """Text from anywhere, escaped for plotly, which reads tags in its labels."""
    return html.escape(plain(outside))
