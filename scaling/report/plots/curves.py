"""Throughput and latency against the batch, and bus bandwidth against message size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle

from scaling.analysis.results import FabricLevel, InferenceCase, Measured
from scaling.report import cases, findings, text
from scaling.report.plots.base import DASHES, HUES, SYMBOLS, Json, Plot, layout, line, safe, slug, whiskers
from scaling.units import format_bytes


def throughput_by_batch(rows: Sequence[cases.Row]) -> Plot | None:
    """Samples a second against batch at the largest world size; the knee is ringed."""
    bars = "bars are 95 % intervals."
    caption = f"A ring marks the knee; {bars}" if any(r.knee for r in rows) else bars.capitalize()
    return _over_batch([(r, r.samples_per_s) for r in rows], "throughput (samples per second)", caption)


def latency_by_batch(rows: Sequence[InferenceCase]) -> Plot | None:
    """Median latency against batch."""
    caption = "Bars are 95 % intervals."
    return _over_batch([(r, r.latency_ms.p50) for r in rows], "median latency (ms)", caption)


def _over_batch(rows: Sequence[tuple[cases.Row, Measured | None]], axis: str, caption: str) -> Plot | None:
    largest = max((row.world_size for row, _ in rows), default=0)
    series: dict[str, list[tuple[cases.Row, Measured]]] = {}
    for row, value in rows:
        if value is not None and value.tells and row.world_size == largest:
            series.setdefault(cases.setting(row), []).append((row, value))
    series = {name: sorted(points, key=lambda p: p[0].batch) for name, points in series.items()}
    batches = sorted({row.batch for points in series.values() for row, _ in points})
    if len(batches) < 2:
        return None
    styles = zip(cycle(HUES), cycle(DASHES), cycle(SYMBOLS), strict=False)
    data = [
        _batches(name, points, *style) for (name, points), style in zip(series.items(), styles, strict=False)
    ]
    shape = layout("batch a rank (log scale)", axis)
    shape["xaxis"] |= {"type": "log", "tickvals": batches, "ticktext": [str(b) for b in batches]}
    shape["yaxis"]["rangemode"] = "tozero"
    shape["showlegend"] = len(series) > 1
    description = "; ".join(
        f"{name}: " + ", ".join(f"batch {row.batch} {text.quantity(value)}" for row, value in points)
        for name, points in series.items()
    )
    return Plot(
        name=slug(axis.partition(" (")[0]),
        label=f"{axis} against batch at {text.ranks(largest)}: {description}",
        caption=f"{text.ranks(largest)}. {caption}",
        height_px=340,
        data=data,
        layout=shape,
    )


def _batches(
    name: str, points: Sequence[tuple[cases.Row, Measured]], hue: str, dash: str, symbol: str
) -> Json:
    values = [value for _, value in points]
    trace = line([row.batch for row, _ in points], [v.value for v in values], hue, dash)
    rings = ["$fg" if row.knee else hue for row, _ in points]
    widths = [3 if row.knee else 0 for row, _ in points]
    trace |= {"mode": "lines+markers", "name": safe(name)}
    trace |= {
        "marker": {"size": 10, "symbol": symbol, "color": hue, "line": {"color": rings, "width": widths}}
    }
    trace |= {"error_y": whiskers(values, hue)}
    hover = [f"batch {row.batch}: {text.quantity(value)}" for row, value in points]
    return trace | {"text": hover, "hovertemplate": "%{text}<extra>" + safe(name) + "</extra>"}


def fabric(level: FabricLevel, bucket_bytes: Iterable[int]) -> Plot | None:
    """Bus bandwidth against message size: measured, fitted, nominal, and where the model's buckets lie."""
    curve = [c for c in level.curve if c.bytes > 0 and c.busbw_gbit_s.tells]
    if not curve:
        return None
    data = []
    for index, collective in enumerate(dict.fromkeys(c.collective for c in curve)):
        points = [c for c in curve if c.collective == collective]
        busbw = [c.busbw_gbit_s for c in points]
        trace = line([c.bytes for c in points], [m.value for m in busbw], "$accent", "solid")
        trace |= {
            "mode": "markers",
            "name": f"{safe(collective)} measured",
            "error_y": whiskers(busbw, "$accent"),
        }
        trace |= {"marker": {"size": 8, "symbol": SYMBOLS[index % len(SYMBOLS)], "color": "$accent"}}
        hover = [f"{format_bytes(c.bytes)}: {text.quantity(c.busbw_gbit_s, 'Gbit/s')}" for c in points]
        data.append(trace | {"text": hover, "hovertemplate": "%{text}<extra></extra>"})
    sizes = [c.bytes for c in curve]
    buckets = sorted(set(bucket_bytes))
    low, high = min([*sizes, *buckets]), max([*sizes, *buckets])
    data += _fit(level, low, high)
    if level.nominal_gbit_s is not None:
        nominal = line([low, high], [level.nominal_gbit_s] * 2, "$muted", "dot")
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
    drawn = layout("message size (bytes, log scale)", "busbw (Gbit/s)")
    ticks = [1 << k for k in range(0, 41, 2 if high / low < 2**12 else 4) if low <= 1 << k <= high]
    drawn["xaxis"] |= {"type": "log", "tickvals": ticks, "ticktext": [format_bytes(t) for t in ticks]}
    drawn["yaxis"]["rangemode"] = "tozero"
    drawn["showlegend"] = True
    fitted = " The dashed line is the fit, time = 2(n-1)(alpha + m beta / n)." if level.alpha_us else ""
    rugged = " Triangles mark the sizes of the model's gradient buckets." if buckets else ""
    caption = f"{text.sentence(findings.level_figures(level))}{fitted}{rugged}"
    return Plot(
        name=slug("fabric", level.name, level.world_size),
        label=findings.level_line(level),
        caption=caption,
        height_px=360,
        data=data,
        layout=drawn,
    )


def _fit(level: FabricLevel, low: int, high: int) -> list[Json]:
    """The fit drawn as bus bandwidth: m / (n alpha + m beta)."""
    if level.alpha_us is None or level.busbw_gbit_s is None or level.busbw_gbit_s.value <= 0:
        return []
    sizes = [low * (high / low) ** (k / 60) for k in range(61)]
    alpha_s = level.alpha_us.value * 1e-6
    beta_s = 8e-9 / level.busbw_gbit_s.value
    busbw = [8e-9 * m / (level.world_size * alpha_s + m * beta_s) for m in sizes]
    return [line(sizes, busbw, "$second", "dash") | {"name": "alpha-beta fit", "hoverinfo": "skip"}]
