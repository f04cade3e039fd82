"""The summary run's tables and charts for W&B, as plain data (`scaling.report.tracking.sync` reads it).

Tables are {columns, rows}, charts {kind: line | bar, title, ...}.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from scaling.analysis import results
from scaling.report import cases, side_by_side, text
from scaling.report.key_figures import waterfall
from scaling.report.machines import ON_PAGE, slowest

Json = dict[str, Any]

EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high")
STEP = ("step_ms", "step_ms_low", "step_ms_high", "samples_per_s", "speedup", "efficiency_loaded")
PARTS_COLUMNS = tuple(f"parts_{field.name}_ms" for field in dataclasses.fields(results.StepParts))
LOSS_COLUMNS = tuple(f"loss_{field.name}" for field in dataclasses.fields(results.Loss))
DRAWN = ("world_size", *EFFICIENCY, *STEP, *PARTS_COLUMNS, *LOSS_COLUMNS)
"""What the summary run's history holds, a row a world size."""


def spread(named: Json) -> Json:
    """Measured numbers as `name`, `name_low` and `name_high`; what is unknown is left out."""
    flat: Json = {}
    for name, value in named.items():
        if isinstance(value, results.Measured) and value.tells:
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, str | int | float):
            flat[name] = value
    return {k: v for k, v in flat.items() if v is not None}


def named(pattern: str, value: Any) -> Json:
    """The fields of an object under a pattern of names; empty for None."""
    fields = dataclasses.fields(value) if value else ()
    return {pattern.format(f.name): getattr(value, f.name) for f in fields}


def numbers(point: results.Point | None) -> Json:
    """Every number of a world size under one flat name each."""
    if point is None:
        return {}
    return spread(
        named("{}", point)
        | named("arms_{}_ms", point.arms_ms)
        | named("parts_{}_ms", point.parts_ms)
        | named("loss_{}", point.loss)
        | named("straggler_{}", point.straggler)
        | named("tokens_{}", point.tokens)
        | named("goodput_{}", point.goodput)
        | named("{}", point.overhead)
        | named("{}", point.comm)
        | named("{}", point.memory)
        | named("clocks_{}", point.clocks)
        | named("{}", point.cost)
    )


def tables(analysis: results.Analysis) -> Json:
    """Every table that has rows."""
    rows = [numbers(p) for p in analysis.points]
    by_name = {
        "efficiency_by_world_size": _table(rows, ("world_size", "hosts", "status", *EFFICIENCY, *STEP)),
        "parts_by_world_size": _table(rows, ("world_size", *PARTS_COLUMNS)),
        "loss_waterfall": _table([row for p in analysis.points for row in waterfall_rows(p)]),
        "buckets": _table(
            [
                {"world_size": p.world_size, "bucket": index} | spread(named("{}", bucket))
                for p in analysis.points
                for index, bucket in enumerate(p.comm.buckets if p.comm else ())
            ]
        ),
        "fabric_curve": _table(
            [
                {"level": level.name, "world_size": level.world_size} | spread(named("{}", point))
                for level in analysis.fabric.levels
                for point in level.curve
            ]
        ),
        "hosts": _table([_told(h) for h in slowest(analysis.hosts, ON_PAGE)]),
        "slowest_ranks": _table(
            [
                {"host": host.host, "hostname": host.hostname, "host_ratio": host.ratio}
                | spread(named("{}", step) | {"slow": int(step.slow)})
                for host in (analysis.ranks.hosts if analysis.ranks else ())
                for step in host.slowest
            ]
        ),
        **{
            name: _table([_told(each) for p in analysis.points for each in getattr(p, name)])
            for name in ("phases", "pauses", "stalls", "drifts")
        },
        "inference": _table([_case_row(analysis, r) for r in analysis.inference]),
        "strategies": _table(
            [
                spread(
                    {"strategy": strategy.parallel.strategy}
                    | numbers(p)
                    | named("against_first_{}", results.at(p.world_size, strategy.against_first))
                )
                for strategy in analysis.strategies
                for p in strategy.points
            ]
        ),
        "training": _table([_case_row(analysis, r) for r in analysis.training]),
        "largest_batch": _table([spread(named("{}", r)) for r in analysis.largest_batch]),
        "verdicts": _table([_verdict_row(v) for v in analysis.verdicts]),
        "trials": _table([spread(named("{}", t)) for t in analysis.trials]),
    }
    return {k: v for k, v in by_name.items() if v["rows"]}


def comparison_tables(comparisons: Sequence[results.Comparison]) -> Json:
    """Tables with a row a pair of runs and world size, case, or setting that differs."""
    pairs = [(pair, *side_by_side.run_names(pair)) for pair in comparisons]
    by_name = {
        "comparison": _table(
            [{"base": a, "other": b} | _ratio_row(p) for pair, a, b in pairs for p in pair.points]
        ),
        "cases": _table(
            [{"base": a, "other": b} | _case_ratio_row(c) for pair, a, b in pairs for c in pair.cases]
        ),
        "settings": _table(
            [
                {"base_run": a, "other_run": b} | {k: v or "" for k, v in named("{}", setting).items()}
                for pair, a, b in pairs
                for setting in pair.settings
            ]
        ),
    }
    return {k: v for k, v in by_name.items() if v["rows"]}


def _table(rows: Sequence[Json], columns: Sequence[str] = ()) -> Json:
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": list(columns), "rows": [[row.get(name) for name in columns] for row in rows]}


def waterfall_rows(point: results.Point) -> Iterator[Json]:
    """From ideal to measured, a fraction of the step each; between them the causes add up."""
    if point.loss is None:
        return
    for row in waterfall(point.loss, point.efficiency):
        if row.value is not None and row.value.tells:
            yield {"world_size": point.world_size, "cause": row.cause} | spread({"share": row.value})


def _told(result: Any) -> Json:
    """The fields of a result, lists as texts."""
    fields = named("{}", result).items()
    return spread({key: ", ".join(map(str, v)) if isinstance(v, tuple) else v for key, v in fields})


def _verdict_row(verdict: results.Verdict) -> Json:
    remedies = {
        "evidence": "; ".join(verdict.evidence),
        "try": "; ".join(r.overrides for r in verdict.try_),
        "in_code": "; ".join(r.code for r in verdict.try_ if r.code) or None,
        "predicted_gain": verdict.try_[0].predicted_gain if verdict.try_ else None,
    }
    return spread(named("{}", verdict) | remedies)


def _ratio_row(point: results.PointComparison) -> Json:
    return spread(
        named("{}", point)
        | {f"{k}_ms": v for k, v in point.causes.items()}
        | named("split_{}", point.split)
        | named("base_{}", point.cost.base)
        | named("other_{}", point.cost.other)
        | {"per_usd": point.cost.per_usd, "per_joule": point.cost.per_joule}
    )


def _case_ratio_row(case: results.CaseComparison) -> Json:
    base, other = case.samples_per_s
    return spread(
        {"world_size": case.world_size, "batch": case.batch, "ratio": case.ratio, **case.setting}
        | {"distinguishable": case.distinguishable, "base_samples_per_s": base, "other_samples_per_s": other}
    )


def _case_row(analysis: results.Analysis, row: cases.Row) -> Json:
    """One case, with the device first: rows of several runs make one table of device, precision and batch."""
    device = analysis.run.device_name or analysis.run.device
    latency = named("latency_{}_ms", getattr(row, "latency_ms", None))
    return {"device": device, "setting": cases.setting(row)} | spread(named("{}", row) | latency)


def charts(analysis: results.Analysis) -> Json:
    """Every chart that has something to draw."""
    rows = [numbers(p) for p in analysis.points]
    fallen = [p for p in analysis.points if p.loss is not None]
    curves = (
        (f"{level.name} {point.collective} n={level.world_size}", point.bytes, point.busbw_gbit_s)
        for level in analysis.fabric.levels
        for point in level.curve
    )
    measured_cases: list[cases.Row] = [*analysis.inference, *analysis.training]
    throughput = (
        (f"{cases.setting(row)} n={row.world_size}", row.batch, row.samples_per_s) for row in measured_cases
    )
    by_name = {
        "efficiency_chart": _over_world_size("Scaling efficiency, with its 95 % interval", rows, EFFICIENCY),
        "parts_chart": _over_world_size("Where a step goes, ms", rows, PARTS_COLUMNS),
        "loss_chart": _over_world_size("Lost efficiency by cause", rows, LOSS_COLUMNS),
        "fabric_chart": _lines("Bus bandwidth, Gbit/s", "bytes", _series(curves)),
        "throughput_chart": _lines("Samples per second", "batch", _series(throughput)),
    }
    by_name = {k: v for k, v in by_name.items() if v["series"]}
    if fallen:
        by_name["waterfall_chart"] = _bars(max(fallen, key=lambda p: p.world_size))
    return by_name


def comparison_charts(comparisons: Sequence[results.Comparison]) -> Json:
    """The ratios over world sizes, a line a run."""
    series: dict[str, list[tuple[float, float]]] = {}
    for pair in comparisons:
        _, other = side_by_side.run_names(pair)
        ratios = [(float(p.world_size), p.ratio.value) for p in pair.points if p.ratio and p.ratio.tells]
        series |= {other: ratios} if ratios else {}
    return {"ratio_chart": _lines("Throughput over the base", "world_size", series)} if series else {}


def _over_world_size(title: str, rows: Sequence[Json], columns: Iterable[str]) -> Json:
    series = {name: [(row["world_size"], row[name]) for row in rows if name in row] for name in columns}
    return _lines(title, "world_size", {k: v for k, v in series.items() if v})


def _lines(title: str, x: str, series: dict[str, list[tuple[float, float]]]) -> Json:
    """A chart of lines: their names, and points (x, y)."""
    return {"kind": "line", "title": title, "x": x, "series": series}


def _bars(point: results.Point) -> Json:
    """The waterfall of one world size, with the names that the report uses."""
    bars = [(text.cause_name(row["cause"]), 100 * row["share"]) for row in waterfall_rows(point)]
    title = f"Loss waterfall at {text.ranks(point.world_size)}, % of the step"
    return {"kind": "bar", "title": title, "label": "cause", "value": "% of the step", "bars": bars}


def _series(
    points: Iterable[tuple[str, float, results.Measured | None]],
) -> dict[str, list[tuple[float, float]]]:
    """Lines from (name, x, y); a y that tells nothing is left out."""
    series: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in points:
        if y is not None and y.tells:
            series.setdefault(name, []).append((x, y.value))
    return series
