"""The figures of the HTML report, as plotly's own JSON.

Colours are written `$name` and stand for the page's CSS variable `--name`: the page's script puts
them in, so that one figure serves light, dark and print. Series differ in more than colour.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from scaling.analysis.results import Inference, Level, Loss, Measured, Parts, Point, Span, Timeline, Training
from scaling.report import cases, findings, text
from scaling.units import format_bytes

RANKS_SHOWN = 16
"""Ranks of a timeline that are drawn; more would be too thin to read."""

LABELS = 5
"""A curve of more points names its last one only."""

Json = dict[str, Any]

_PATTERNS = {
    "input": ".",
    "forward": "",
    "backward": "",
    "exposed_transfer": "/",
    "exposed_skew": "x",
    "optimizer": "-",
    "host": "|",
    "bucket": "",
}
_DASHES = ("solid", "dash")
_SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up")
_HUES = ("$accent", "$second")
_CHARACTER_PX = 6.9
_LANE = 0.84
"""Height of a lane's bars, of the 1 between lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure: `label` says what it shows to those who cannot see it."""

    label: str
    caption: str
    height_px: int
    data: list[Json]
    layout: Json
    legend: tuple[tuple[str, str], ...] = ()
    """(part, label) of the areas: the page draws this legend itself, because plotly's does not wrap."""


def scaling_curve(series: Sequence[tuple[str, Sequence[Point]]]) -> Plot | None:
    """Efficiency over world size with its 95 % band, one line a run, beside the ideal."""
    measured = [(name, [p for p in points if p.efficiency is not None]) for name, points in series]
    sizes = sorted({p.world_size for _, points in measured for p in points})
    if len(sizes) < 2:
        return None
    ends = [sizes[0] / 1.25, sizes[-1] * 1.25]
    data = [_line(ends, [100, 100], "$muted", "dot") | {"hoverinfo": "skip", "showlegend": False}]
    notes = [
        _note(1, 100, "ideal", xref="x domain", xanchor="right", yanchor="bottom", font={"color": "$muted"})
    ]
    for index, (name, points) in enumerate(measured):
        data += _curve(name, points, index, labelled=len(measured) == 1)
    layout = _layout("world size (ranks, log scale)", "efficiency (% of ideal)")
    layout["xaxis"] |= {"type": "log", "tickvals": sizes, "ticktext": [str(n) for n in sizes]}
    layout["xaxis"]["range"] = [math.log10(end) for end in ends]
    highest = max(_high(p.efficiency) for _, points in measured for p in points)
    layout["yaxis"] |= {"range": [0, max(115, 115 * highest)], "ticksuffix": " %"}
    layout |= {"annotations": notes, "showlegend": len(measured) > 1}
    at = ", ".join(
        f"{name + ' ' if len(measured) > 1 else ''}{text.ranks(p.world_size)} {text.percent(p.efficiency)}"
        for name, points in measured
        for p in points
    )
    caption = "The band is the 95 % interval of the measured efficiency; the dotted line is ideal scaling."
    return Plot(
        label=f"Efficiency against world size: {at}", caption=caption, height_px=340, data=data, layout=layout
    )


def _curve(name: str, points: Sequence[Point], index: int, *, labelled: bool) -> list[Json]:
    hue = _HUES[index % len(_HUES)]
    sure = [(p.world_size, p.efficiency) for p in points if p.efficiency is not None]
    banded = [(n, m) for n, m in sure if m.half_width is not None or n == 1]
    x = [n for n, _ in banded]
    edges = [100 * _high(m) for _, m in banded] + [100 * _low(m) for _, m in reversed(banded)]
    band = {"x": x + x[::-1], "y": edges, "fill": "toself", "fillcolor": hue + "-soft", "mode": "lines"}
    band |= {"line": {"width": 0}, "hoverinfo": "skip", "showlegend": False, "type": "scatter"}
    line = _line([n for n, _ in sure], [100 * m.value for _, m in sure], hue, _DASHES[index % 2])
    # One rank keeps all of itself: its 100 % would only sit on the line. Many labels would sit on each other.
    named = {n for n, _ in sure if n > 1} if len(sure) <= LABELS else {sure[-1][0]} if sure else set()
    said = [text.percent(m) if n in named else "" for n, m in sure]
    line |= {"mode": "lines+markers+text" if labelled else "lines+markers", "name": _safe(name)}
    line |= {"marker": {"size": 9, "symbol": _SYMBOLS[index], "color": hue}, "showlegend": not labelled}
    line |= {"text": said, "textposition": "bottom left", "cliponaxis": False}
    line |= {"hovertemplate": "%{y:.1f} %<extra>%{x} ranks</extra>"}
    return [band, line]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    length: float
    said: str
    hue: str
    pattern: str = ""
    start: float = 0.0


def waterfall(loss: Loss, efficiency: Measured | None) -> Plot:
    """From ideal to measured: each bar begins where the last one ended."""
    rows = [_Row(name="ideal", length=100, said="100 %", hue="$ideal")]
    level = 100.0
    for cause, value in text.losses_of(loss):
        share = 100 * value.value if value else 0.0
        hue, pattern = ("$loss", "") if share >= 0 else ("$gain", ".")
        row = _Row(
            name=text.cause_name(cause),
            start=min(level, level - share),
            length=abs(share),
            said=text.percent(value),
            hue=hue,
            pattern="/" if cause == "unexplained" else pattern,
        )
        rows.append(row)
        level -= share
    if efficiency is not None:
        said = text.percent(efficiency)
        rows.append(_Row(name="measured", length=100 * efficiency.value, said=said, hue="$accent"))
    end = max(row.start + row.length for row in rows)
    caption = (
        "What each cause takes of the step, from ideal to measured. Dotted: time won; hatched: unexplained."
    )
    return _bars("Loss waterfall", rows, {"title": {"text": "% of the step"}, "range": [0, end]}, caption)


def differences(causes: Sequence[tuple[str, Measured]]) -> Plot:
    """What makes up the difference of two steps: bars to the left are time saved."""
    rows = [
        _Row(
            name=text.cause_name(cause),
            length=value.value,
            said=text.signed(text.quantity(value, "ms")),
            hue="$loss" if value.value >= 0 else "$gain",
            pattern="" if value.value >= 0 else ".",
        )
        for cause, value in causes
    ]
    axis = {"title": {"text": "ms of a step, other - base"}, "zeroline": True, "zerolinecolor": "$muted"}
    caption = "Dotted bars: less time in the other run; solid bars: more."
    return _bars("Difference of the step by cause", rows, axis, caption)


def _bars(what: str, rows: Sequence[_Row], axis: Json, caption: str) -> Plot:
    """Horizontal bars with their numbers in a column on the right."""
    layout = _layout("", None)
    layout["barmode"] = "overlay"
    layout["xaxis"] |= axis
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    layout["annotations"] = [_note(1, r.name, r.said, xref="paper", yanchor="middle", xshift=8) for r in rows]
    layout["margin"]["r"] = 16 + round(_CHARACTER_PX * max(len(r.said) for r in rows))
    label = f"{what}: " + ", ".join(f"{r.name} {r.said}" for r in rows)
    return Plot(
        label=label,
        caption=caption,
        height_px=70 + 27 * len(rows),
        data=list(map(_row_bar, rows)),
        layout=layout,
    )


def _row_bar(row: _Row) -> Json:
    bar: Json = {"type": "bar", "orientation": "h", "y": [row.name], "x": [row.length], "base": [row.start]}
    bar["marker"] = {"color": row.hue, "pattern": _hatch(row.pattern)}
    return bar | {"customdata": [row.said], "hovertemplate": "%{y}: %{customdata}<extra></extra>"}


def parts(rows: Sequence[tuple[str, Parts]]) -> Plot | None:
    """The parts of a step, stacked, one bar a row."""
    found = [(name, dict(text.parts_of(row))) for name, row in rows]
    found = [(name, row) for name, row in found if row]
    if not found:
        return None
    names = [_safe(name) for name, _ in found]
    legend = tuple((k, label) for k, label in text.PARTS.items() if any(k in row for _, row in found))
    data = []
    for key, label in legend:
        ms = [row.get(key) for _, row in found]
        bar = _bar(names, [m.value if m else None for m in ms], key, [text.value_of(m) for m in ms])
        bar |= {"customdata": [text.quantity(m, "ms") for m in ms]}
        data.append(bar | {"hovertemplate": f"{label}: %{{customdata}}<extra>%{{y}}</extra>"})
    layout = _layout("ms of a step", None)
    layout["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    layout |= {"barmode": "stack", "uniformtext": {"minsize": 10, "mode": "hide"}}
    described = (
        f"{name}: " + ", ".join(f"{text.PARTS[k]} {text.quantity(v, 'ms')}" for k, v in row.items())
        for name, row in found
    )
    return Plot(
        label=f"Parts of a step: {'; '.join(described)}",
        caption="Mean over ranks and rounds, measured with the probe. Numbers inside the bars are ms.",
        height_px=60 + 44 * len(found),
        data=data,
        layout=layout,
        legend=legend,
    )


def fabric(level: Level, bucket_bytes: Iterable[int]) -> Plot | None:
    """Bus bandwidth against message size: measured, fitted, nominal, and where the model's buckets lie."""
    curve = [c for c in level.curve if c.bytes > 0]
    if not curve:
        return None
    data = []
    for index, collective in enumerate(dict.fromkeys(c.collective for c in curve)):
        found = [c for c in curve if c.collective == collective]
        busbw = [c.busbw_gbit_s for c in found]
        trace = _line([c.bytes for c in found], [m.value for m in busbw], "$accent", "solid")
        error = {"type": "data", "symmetric": False, "color": "$accent", "thickness": 1, "width": 3}
        error |= {
            "array": [_high(m) - m.value for m in busbw],
            "arrayminus": [m.value - _low(m) for m in busbw],
        }
        trace |= {"mode": "markers", "name": f"{_safe(collective)} measured", "error_y": error}
        trace |= {"marker": {"size": 8, "symbol": _SYMBOLS[index % len(_SYMBOLS)], "color": "$accent"}}
        said = [f"{format_bytes(c.bytes)}: {text.quantity(c.busbw_gbit_s, 'Gbit/s')}" for c in found]
        data.append(trace | {"text": said, "hovertemplate": "%{text}<extra></extra>"})
    sizes = [c.bytes for c in curve]
    buckets = sorted(set(bucket_bytes))
    low, high = min([*sizes, *buckets]), max([*sizes, *buckets])
    data += _fit(level, low, high)
    if level.nominal_gbit_s is not None:
        nominal = _line([low, high], [level.nominal_gbit_s] * 2, "$muted", "dot")
        data.append(nominal | {"name": "nominal link", "hoverinfo": "skip"})
    if buckets:
        rug = {
            "type": "scatter",
            "mode": "markers",
            "x": buckets,
            "y": [0] * len(buckets),
            "cliponaxis": False,
        }
        rug |= {"name": "the model's buckets", "text": [format_bytes(b) for b in buckets]}
        rug |= {"marker": {"symbol": "triangle-up", "size": 11, "color": "$loss"}}
        data.append(rug | {"hovertemplate": "bucket of %{text}<extra></extra>"})
    layout = _layout("message size (bytes, log scale)", "busbw (Gbit/s)")
    ticks = [1 << k for k in range(0, 41, 2 if high / low < 2**12 else 4) if low <= 1 << k <= high]
    layout["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [format_bytes(t) for t in ticks]}
    layout["yaxis"]["rangemode"] = "tozero"
    layout["showlegend"] = True
    fitted = " The dashed line is the fit, time = 2(n-1)(alpha + m beta / n)." if level.alpha_us else ""
    rugged = " Triangles mark the sizes of the model's gradient buckets." if buckets else ""
    caption = f"{text.sentence(findings.level_figures(level))}{fitted}{rugged}"
    return Plot(label=findings.level_line(level), caption=caption, height_px=360, data=data, layout=layout)


def _fit(level: Level, low: int, high: int) -> list[Json]:
    """The fit drawn as bus bandwidth: m / (n alpha + m beta)."""
    if level.alpha_us is None or level.busbw_gbit_s is None or level.busbw_gbit_s.value <= 0:
        return []
    sizes = [low * (high / low) ** (k / 60) for k in range(61)]
    alpha_s = level.alpha_us.value * 1e-6
    beta_s = 8e-9 / level.busbw_gbit_s.value
    busbw = [8e-9 * m / (level.world_size * alpha_s + m * beta_s) for m in sizes]
    return [_line(sizes, busbw, "$second", "dash") | {"name": "alpha-beta fit", "hoverinfo": "skip"}]


def timeline(step: Timeline) -> Plot | None:
    """A typical step: for every rank its phases, and below them the link with the buckets on it."""
    spans = [s for s in step.spans if s.rank < RANKS_SHOWN]
    if not spans:
        return None
    lanes = sorted({(s.rank, s.lane) for s in spans})
    # A little air between ranks, none between the two lanes of one.
    place = {lane: index + 0.35 * lane[0] for index, lane in enumerate(lanes)}
    legend = tuple(
        (key, label)
        for key, label in (*text.PARTS.items(), ("bucket", "bucket on the link"))
        if any(_kind(s) == key for s in spans)
    )
    data = [_spans([s for s in spans if _kind(s) == key], key, place) for key, _ in legend]
    layout = _layout("ms since the step began", None)
    ticks = [f"rank {rank} {lane}" for rank, lane in lanes]
    layout["yaxis"] |= {"tickvals": list(place.values()), "ticktext": ticks, "showgrid": False}
    layout["yaxis"]["range"] = [max(place.values()) + 0.6, -0.6]
    layout["xaxis"]["range"] = [0, max(s.end_ms for s in spans)]
    layout |= {"barmode": "overlay", "uniformtext": {"minsize": 10, "mode": "hide"}}
    shown = len({rank for rank, _ in lanes})
    more = f" The first {shown} ranks of {step.world_size}." if shown < step.world_size else ""
    return Plot(
        label=f"Timeline of one typical step of {text.ranks(step.world_size)}: its phases and buckets",
        caption=f"The step whose length is nearest to the mean. Buckets in two rows overlap in time.{more}",
        height_px=60 + 40 * len(lanes),
        data=data,
        layout=layout,
        legend=legend,
    )


def _kind(span: Span) -> str:
    return span.name if span.name in text.PARTS else "bucket"


def _channels(spans: Sequence[Span]) -> dict[Span, tuple[int, int]]:
    """(row, rows) of each span within its lane: spans that overlap lie below each other."""
    ends: dict[tuple[int, str], list[float]] = {}
    row: dict[Span, int] = {}
    for span in sorted(spans, key=lambda s: s.begin_ms):
        busy = ends.setdefault((span.rank, span.lane), [])
        free = next((k for k, end in enumerate(busy) if end <= span.begin_ms), len(busy))
        busy[free : free + 1] = [span.end_ms]
        row[span] = free
    return {span: (k, len(ends[span.rank, span.lane])) for span, k in row.items()}


def _spans(spans: Sequence[Span], key: str, place: dict[tuple[int, str], float]) -> Json:
    """The bars of one kind of span; those of a lane that overlap share its height."""
    channels = _channels(spans)
    rows = [channels[s] for s in spans]
    offsets = [_LANE * ((row + 0.5) / many - 0.5) for row, many in rows]
    y = [place[s.rank, s.lane] + offset for s, offset in zip(spans, offsets, strict=True)]
    inside = [_safe(text.PARTS.get(s.name, s.name)) for s in spans]
    bars = _bar(y, [s.end_ms - s.begin_ms for s in spans], key, inside)
    bars |= {"base": [s.begin_ms for s in spans], "width": [_LANE / many for _, many in rows]}
    said = [f"{name}, {_span_text(s)}" for name, s in zip(inside, spans, strict=True)]
    return bars | {"customdata": said, "hovertemplate": "%{customdata}<extra></extra>"}


def _span_text(span: Span) -> str:
    size = f", {format_bytes(span.bytes)}" if span.bytes else ""
    return f"rank {span.rank}: {text.number(span.begin_ms)} to {text.number(span.end_ms)} ms{size}"


def _bar(y: Sequence[Any], x: Sequence[Any], key: str, inside: list[str]) -> Json:
    name = key.replace("_", "-")
    marker: Json = {"color": f"${name}", "line": {"color": "$bg", "width": 1}}
    marker["pattern"] = _hatch(_PATTERNS[key])
    bar: Json = {"type": "bar", "orientation": "h", "y": y, "x": x, "marker": marker, "text": inside}
    bar |= {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
    return bar | {"insidetextfont": {"color": f"$on-{name}", "size": 11}}


def _hatch(shape: str) -> Json:
    return {"shape": shape, "fgcolor": "$hatch", "fillmode": "overlay", "size": 7, "solidity": 0.22}


def _line(x: Sequence[float], y: Sequence[float], hue: str, dash: str) -> Json:
    line = {"color": hue, "dash": dash, "width": 2}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "showlegend": True}


def _note(x: float, y: float | str, said: str, **place: Any) -> Json:
    note = {"x": x, "y": y, "yref": "y", "xanchor": "left", "text": said, "showarrow": False}
    return note | place


def _layout(x: str, y: str | None) -> Json:
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


def _safe(outside: str) -> str:
    """Outside text for plotly, which reads tags in its labels."""
    return html.escape(text.plain(outside))


def _low(measured: Measured | None) -> float:
    return 0.0 if measured is None else measured.value if measured.low is None else measured.low


def _high(measured: Measured | None) -> float:
    return 0.0 if measured is None else measured.value if measured.high is None else measured.high


Case = Inference | Training


def throughput_by_batch(rows: Sequence[Case]) -> Plot | None:
    """Samples a second against batch at the largest world size; the knee is ringed."""
    return _over_batch(
        rows,
        lambda r: r.samples_per_s,
        "samples per second",
        "A ring marks the knee; bars are 95 % intervals.",
    )


def latency_by_batch(rows: Sequence[Inference]) -> Plot | None:
    """Median latency against batch."""

    def median(row: Case) -> Measured | None:
        return row.latency_ms.p50 if isinstance(row, Inference) else None

    return _over_batch(rows, median, "median latency (ms)", "Bars are 95 % intervals.")


def _over_batch(
    rows: Sequence[Case], of: Callable[[Case], Measured | None], axis: str, caption: str
) -> Plot | None:
    largest = max((r.world_size for r in rows), default=0)
    series: dict[str, list[tuple[Case, Measured]]] = {}
    for row in rows:
        value = of(row)
        if value is not None and row.world_size == largest:
            series.setdefault(cases.setting(row), []).append((row, value))
    series = {name: sorted(found, key=lambda p: p[0].batch) for name, found in series.items()}
    batches = sorted({row.batch for found in series.values() for row, _ in found})
    if len(batches) < 2:
        return None
    styles = zip(cycle(_HUES), cycle(_DASHES), cycle(_SYMBOLS), strict=False)
    data: list[Json] = []
    for (name, found), (hue, dash, symbol) in zip(series.items(), styles, strict=False):
        data.append(_batches(name, found, hue, dash, symbol))
    shape = _layout("batch a rank (log scale)", axis)
    shape["xaxis"] |= {"type": "log", "tickvals": batches, "ticktext": [str(b) for b in batches]}
    shape["yaxis"]["rangemode"] = "tozero"
    shape["showlegend"] = len(series) > 1
    said = "; ".join(
        f"{name}: " + ", ".join(f"batch {row.batch} {text.quantity(value)}" for row, value in found)
        for name, found in series.items()
    )
    return Plot(
        label=f"{axis} against batch at {text.ranks(largest)}: {said}",
        caption=f"{text.ranks(largest)}. {caption}",
        height_px=340,
        data=data,
        layout=shape,
    )


def _batches(name: str, found: Sequence[tuple[Case, Measured]], hue: str, dash: str, symbol: str) -> Json:
    values = [value for _, value in found]
    trace = _line([row.batch for row, _ in found], [v.value for v in values], hue, dash)
    rings = ["$fg" if row.knee else hue for row, _ in found]
    widths = [3 if row.knee else 0 for row, _ in found]
    trace |= {"mode": "lines+markers", "name": _safe(name)}
    trace |= {
        "marker": {"size": 10, "symbol": symbol, "color": hue, "line": {"color": rings, "width": widths}}
    }
    trace |= {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [_high(v) - v.value for v in values],
            "arrayminus": [v.value - _low(v) for v in values],
            "color": hue,
            "thickness": 1,
        }
    }
    said = [f"batch {row.batch}: {text.quantity(value)}" for row, value in found]
    return trace | {"text": said, "hovertemplate": "%{text}<extra>" + _safe(name) + "</extra>"}
