"""The summary run's charts for W&B, as plain data: {kind: line | bar, title, ...} (scaling.report.tracking.sync)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.results import Analysis, Comparison, Fabric, InferenceCase, Point, TrainingCase
from scaling.report import cases, text, versus
from scaling.report.tracking.tables import (
    EFFICIENCY,
    LOSS_COLUMNS,
    PARTS_COLUMNS,
    Json,
    numbers,
    waterfall_rows,
)


def charts(analysis: Analysis) -> Json:
    """Every chart that has something to draw."""
    rows = [numbers(p) for p in analysis.points]
    fallen = [p for p in analysis.points if p.loss is not None]
    found = {
        "efficiency_chart": _lines("Scaling efficiency, with its 95 % interval", rows, EFFICIENCY),
        "parts_chart": _lines("Where a step goes, ms", rows, PARTS_COLUMNS),
        "loss_chart": _lines("Lost efficiency by cause", rows, LOSS_COLUMNS),
        "fabric_chart": _fabric_chart(analysis.fabric),
        "throughput_chart": _case_chart((*analysis.inference, *analysis.training)),
    }
    found = {k: v for k, v in found.items() if v["series"]}
    if fallen:
        found["waterfall_chart"] = _bars(max(fallen, key=lambda p: p.world_size))
    return found


def comparison_charts(comparisons: Sequence[Comparison]) -> Json:
    """The ratios over world sizes, a line a run."""
    series: dict[str, list[tuple[float, float]]] = {}
    for one in comparisons:
        _, other = versus.run_names(one)
        found = [(float(p.world_size), p.ratio.value) for p in one.points if p.ratio and p.ratio.tells]
        series |= {other: found} if found else {}
    chart = {"kind": "line", "title": "Throughput over the base", "x": "world_size", "series": series}
    return {"ratio_chart": chart} if series else {}


def _lines(title: str, rows: Sequence[Json], columns: Iterable[str]) -> Json:
    series = {name: [(row["world_size"], row[name]) for row in rows if name in row] for name in columns}
    return {
        "kind": "line",
        "title": title,
        "x": "world_size",
        "series": {k: v for k, v in series.items() if v},
    }


def _bars(point: Point) -> Json:
    """The waterfall of one world size, with the names that the report uses."""
    bars = [(text.cause_name(row["cause"]), 100 * row["share"]) for row in waterfall_rows(point)]
    title = f"Loss waterfall at {text.ranks(point.world_size)}, % of the step"
    return {"kind": "bar", "title": title, "label": "cause", "value": "% of the step", "bars": bars}


def _case_chart(rows: Sequence[InferenceCase | TrainingCase]) -> Json:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.samples_per_s is not None and row.samples_per_s.tells:
            label = f"{cases.setting(row)} n={row.world_size}"
            series.setdefault(label, []).append((row.batch, row.samples_per_s.value))
    return {"kind": "line", "title": "Samples per second", "x": "batch", "series": series}


def _fabric_chart(fabric: Fabric) -> Json:
    series: dict[str, list[tuple[float, float]]] = {}
    for level in fabric.levels:
        for point in level.curve:
            if not point.busbw_gbit_s.tells:
                continue
            label = f"{level.name} {point.collective} n={level.world_size}"
            series.setdefault(label, []).append((point.bytes, point.busbw_gbit_s.value))
    return {"kind": "line", "title": "Bus bandwidth, Gbit/s", "x": "bytes", "series": series}
