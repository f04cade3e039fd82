"""Throughput and latency against the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle

from scaling.analysis.results import InferenceCase, Measured, TrainingCase
from scaling.report import cases, text
from scaling.report.plots.base import DASHES, HUES, SYMBOLS, Json, Plot, layout, line, safe, slug, whiskers

Case = InferenceCase | TrainingCase


def throughput_by_batch(rows: Sequence[Case]) -> Plot | None:
    """Samples a second against batch at the largest world size; the knee is ringed."""
    bars = "bars are 95 % intervals."
    caption = f"A ring marks the knee; {bars}" if any(r.knee for r in rows) else bars.capitalize()
    return _over_batch(rows, lambda r: r.samples_per_s, "throughput (samples per second)", caption)


def latency_by_batch(rows: Sequence[InferenceCase]) -> Plot | None:
    """Median latency against batch."""

    def median(row: Case) -> Measured | None:
        return row.latency_ms.p50 if isinstance(row, InferenceCase) else None

    return _over_batch(rows, median, "median latency (ms)", "Bars are 95 % intervals.")


def _over_batch(
    rows: Sequence[Case], of: Callable[[Case], Measured | None], axis: str, caption: str
) -> Plot | None:
    largest = max((r.world_size for r in rows), default=0)
    series: dict[str, list[tuple[Case, Measured]]] = {}
    for row in rows:
        value = of(row)
        if value is not None and value.tells and row.world_size == largest:
            series.setdefault(cases.setting(row), []).append((row, value))
    series = {name: sorted(found, key=lambda p: p[0].batch) for name, found in series.items()}
    batches = sorted({row.batch for found in series.values() for row, _ in found})
    if len(batches) < 2:
        return None
    styles = zip(cycle(HUES), cycle(DASHES), cycle(SYMBOLS), strict=False)
    data: list[Json] = []
    for (name, found), (hue, dash, symbol) in zip(series.items(), styles, strict=False):
        data.append(_batches(name, found, hue, dash, symbol))
    shape = layout("batch a rank (log scale)", axis)
    shape["xaxis"] |= {"type": "log", "tickvals": batches, "ticktext": [str(b) for b in batches]}
    shape["yaxis"]["rangemode"] = "tozero"
    shape["showlegend"] = len(series) > 1
    said = "; ".join(
        f"{name}: " + ", ".join(f"batch {row.batch} {text.quantity(value)}" for row, value in found)
        for name, found in series.items()
    )
    return Plot(
        name=slug(axis.partition(" (")[0]),
        label=f"{axis} against batch at {text.ranks(largest)}: {said}",
        caption=f"{text.ranks(largest)}. {caption}",
        height_px=340,
        data=data,
        layout=shape,
    )


def _batches(name: str, found: Sequence[tuple[Case, Measured]], hue: str, dash: str, symbol: str) -> Json:
    values = [value for _, value in found]
    trace = line([row.batch for row, _ in found], [v.value for v in values], hue, dash)
    rings = ["$fg" if row.knee else hue for row, _ in found]
    widths = [3 if row.knee else 0 for row, _ in found]
    trace |= {"mode": "lines+markers", "name": safe(name)}
    trace |= {
        "marker": {"size": 10, "symbol": symbol, "color": hue, "line": {"color": rings, "width": widths}}
    }
    trace |= {"error_y": whiskers(values, hue)}
    said = [f"batch {row.batch}: {text.quantity(value)}" for row, value in found]
    return trace | {"text": said, "hovertemplate": "%{text}<extra>" + safe(name) + "</extra>"}
