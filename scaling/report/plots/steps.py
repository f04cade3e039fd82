"""A step in its parts: their means, one typical step rank by rank, and all steps in the order in which they ran."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results import Measured, Span, StepHistory, StepParts, Timeline
from scaling.report import text
from scaling.report.plots.base import Json, Plot, bar, bar_ends, layout, line, safe, slug
from scaling.units import format_bytes

STEPS_SHOWN = 2000
"""Steps of a history that are drawn, evenly spread."""
CONTENDED = "others took the cores"
CROSS_NOTE = (
    f" A cross: {CONTENDED} then; the block without communication that lies nearest had to wait for one."
)
_DRAWN = {**text.PARTS, "compute": "compute", "bucket": "bucket on the link"}
"""What a timeline shows; compute is that of a trace, which has no phase."""
_LANE = 0.84
"""Height of a lane's bars, of the 1 between lanes."""


def parts(rows: Sequence[tuple[str, StepParts]], *, traced: bool = False) -> Plot | None:
    """The parts of a step, stacked, one bar a row; `traced`: by a profiler."""
    named_parts = [(name, ms_of) for name, row in rows if (ms_of := dict(text.parts_of(row)))]
    if not named_parts:
        return None
    names = [safe(name) for name, _ in named_parts]
    legend = tuple((k, label) for k, label in text.PARTS.items() if any(k in row for _, row in named_parts))
    data = []
    for key, label in legend:
        ms = [row.get(key) for _, row in named_parts]
        stack = bar(names, [m.value if m else None for m in ms], key, [text.value_of(m) for m in ms])
        stack |= {"customdata": [text.quantity(m, "ms") for m in ms]}
        data.append(stack | {"hovertemplate": f"{label}: %{{customdata}}<extra>%{{y}}</extra>"})
    data += _ends(names, [row for _, row in named_parts])
    drawn = layout("ms of a step", None)
    drawn["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    drawn |= {"barmode": "stack", "uniformtext": {"minsize": 10, "mode": "hide"}}
    described = (
        f"{name}: " + ", ".join(f"{text.PARTS[k]} {text.quantity(v, 'ms')}" for k, v in row.items())
        for name, row in named_parts
    )
    return Plot(
        name="parts",
        label=f"Parts of a step: {'; '.join(described)}",
        caption=f"Mean over ranks and {'steps, from traces' if traced else 'rounds, measured with the probe'}. "
        "Numbers inside the bars are ms; a thin line is "
        "the 95 % interval of the part that ends there.",
        height_px=60 + 44 * len(named_parts),
        data=data,
        layout=drawn,
        legend=legend,
    )


def _ends(names: Sequence[str], rows: Sequence[dict[str, Measured]]) -> list[Json]:
    """The interval of each part where it ends."""
    x, y, half = [], [], []
    for name, row in zip(names, rows, strict=True):
        at = 0.0
        for value in row.values():
            at += value.value
            if value.half_width:
                x.append(at)
                y.append(name)
                half.append(value.half_width)
    return [bar_ends(x, y, half, width=0)] if x else []


def timeline(step: Timeline, *, disturbed: bool = False) -> Plot | None:
    """A typical step: for every rank its phases, and below them the buckets on the link.

    `disturbed`: stamps of single collectives make it another step than one without them.
    """
    spans = step.spans
    if not spans:
        return None
    ranks = sorted({s.rank for s in spans}) if step.drawn is None else step.drawn.ranks
    at = {rank: k for k, rank in enumerate(ranks)}
    lanes = sorted({(s.rank, s.lane) for s in spans}, key=lambda lane: (at[lane[0]], lane[1]))
    # A little air between ranks, none between the two lanes of one.
    place = {lane: index + 0.35 * at[lane[0]] for index, lane in enumerate(lanes)}
    legend = tuple((key, label) for key, label in _DRAWN.items() if any(_kind(s) == key for s in spans))
    data = [_spans([s for s in spans if _kind(s) == key], key, place) for key, _ in legend]
    drawn = layout("ms since the step began", None)
    ticks = [f"rank {rank} {lane}" for rank, lane in lanes]
    drawn["yaxis"] |= {"tickvals": list(place.values()), "ticktext": ticks, "showgrid": False}
    drawn["yaxis"]["range"] = [max(place.values()) + 0.6, -0.6]
    drawn["xaxis"]["range"] = [0, max(s.end_ms for s in spans)]
    drawn |= {"barmode": "overlay", "uniformtext": {"minsize": 10, "mode": "hide"}}
    return Plot(
        name=slug("timeline", step.world_size),
        label=f"Timeline of one typical step of {text.ranks(step.world_size)}: its phases, and its buckets or units",
        caption="The step whose length is nearest to the mean. Buckets in two rows overlap in time."
        f"{' Stamps of collectives disturb it: without them it is another step.' if disturbed else ''}{_which(step)}",
        height_px=60 + 40 * len(lanes),
        data=data,
        layout=drawn,
        legend=legend,
    )


def _which(step: Timeline) -> str:
    """Which ranks are drawn, where there are more."""
    some, shown = step.drawn, len({s.rank for s in step.spans})
    if some is None:  # of traces, the first ones
        return f" The first {shown} ranks of {step.world_size}." if shown < step.world_size else ""
    slowest = ", ".join(map(str, some.slowest))
    hosts = ", ".join(f"{rank} on host {host}" for host, rank in some.of_hosts)
    of_hosts = f", then the slowest of the slowest other hosts ({hosts})" if hosts else ""
    return (
        f" Of {text.ranks(step.world_size)} {shown} are drawn, from the top: those whose step is longest without what "
        f"they wait for communication ({slowest}){of_hosts}, then typical ones, nearest to the median rank."
    )


def _kind(span: Span) -> str:
    return span.name if span.name in _DRAWN else "bucket"


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
    """The bars of one kind of span; spans of a lane that overlap share its height."""
    channels = _channels(spans)
    rows = [channels[s] for s in spans]
    offsets = [_LANE * ((row + 0.5) / many - 0.5) for row, many in rows]
    y = [place[s.rank, s.lane] + offset for s, offset in zip(spans, offsets, strict=True)]
    inside = [safe(text.PARTS.get(s.name, s.name)) for s in spans]
    bars = bar(y, [s.end_ms - s.begin_ms for s in spans], key, inside)
    bars |= {"base": [s.begin_ms for s in spans], "width": [_LANE / many for _, many in rows]}
    hover = [f"{name}, {_span_text(s)}" for name, s in zip(inside, spans, strict=True)]
    return bars | {"customdata": hover, "hovertemplate": "%{customdata}<extra></extra>"}


def _span_text(span: Span) -> str:
    size = f", {format_bytes(span.bytes)}" if span.bytes else ""
    return f"rank {span.rank}: {text.number(span.begin_ms)} to {text.number(span.end_ms)} ms{size}"


def history(steps: StepHistory, mean: Measured | None) -> Plot | None:
    """Every step in the order in which they ran: drift and disturbances show here."""
    every = -(-len(steps.arm) // STEPS_SHOWN)
    columns = (steps.columns["time_s"], steps.columns["step_ms"], steps.arm, steps.contended)
    rows = list(zip(*columns, strict=True))[::every]
    if not rows:
        return None
    looks = {
        "plain": ("step", "circle", "$accent"),
        "probe": ("step with the probe", "diamond-open", "$second"),
    }
    data = [
        _steps([(x, y) for x, y, arm, _ in rows if arm == key], name, {"symbol": symbol, "color": hue})
        for key, (name, symbol, hue) in looks.items()
    ]
    crossed = [(x, y) for x, y, _, contended in rows if contended]
    if crossed:
        cross = {"symbol": "x-thin", "size": 9, "opacity": 1, "line": {"width": 1, "color": "$fg"}}
        data.append(_steps(crossed, f"contended: {CONTENDED}", cross))
    times = [x for x, *_ in rows if x is not None]
    if mean is not None:
        ends = [min(times), max(times)]
        data.append(line(ends, [mean.value] * 2, "$fg", "dash") | {"name": "mean", "hoverinfo": "skip"})
        edges: Json = {"x": [*ends, *ends[::-1]], "y": [mean.least] * 2 + [mean.most] * 2, "fill": "toself"}
        edges |= {"type": "scatter", "mode": "lines", "line": {"width": 0}, "fillcolor": "$accent-soft"}
        data.append(edges | {"hoverinfo": "skip", "showlegend": False})
    drawn = layout("time spent measuring (s)", "step (ms)")
    drawn["yaxis"]["rangemode"] = "tozero"
    drawn["showlegend"] = True
    some = f" One step of {every} is drawn." if every > 1 else ""
    return Plot(
        name=slug("steps", steps.world_size),
        label=f"Steps of rank 0 at {text.ranks(steps.world_size)} in the order in which they ran, "
        f"mean {text.quantity(mean, 'ms')}{_contended_share(steps)}",
        caption=f"Steps of rank 0, as they came; other world sizes and arms ran in between. The dashed line and band "
        f"are the mean and its 95 % interval, over blocks and ranks.{CROSS_NOTE if crossed else ''}{some}",
        height_px=300,
        data=data,
        layout=drawn,
    )


def _steps(points: Sequence[tuple[float | None, float | None]], name: str, look: Json) -> Json:
    """Marks of some steps at (s, ms)."""
    marks: Json = {"type": "scatter", "mode": "markers", "name": name, "showlegend": True}
    marks |= {"x": [x for x, _ in points], "y": [y for _, y in points]}
    marks |= {"marker": {"size": 5, "opacity": 0.6} | look}
    return marks | {"hovertemplate": "%{y:.4g} ms at %{x:.1f} s<extra></extra>"}


def _contended_share(steps: StepHistory) -> str:
    """The number of crossed steps, for screen readers."""
    many = sum(map(bool, steps.contended))
    return f": {CONTENDED} beside {many} of {text.count(len(steps.contended), 'step')}" if many else ""
