"""One W&B run per world size and one summary run, in one group. Renders results, computes nothing.

What to log is put together here as plain data; `scaling.report.sync` hands it to W&B.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scaling import codec
from scaling.analysis.results import (
    Analysis,
    Comparison,
    Fabric,
    Inference,
    Loss,
    Measured,
    Parts,
    Point,
    StepHistory,
    Training,
    Verdict,
)
from scaling.plan import Plan, Trial
from scaling.report import cases, findings, sync
from scaling.spec import SECRET
from scaling.store import RunFolder

ONLINE_BOUND_S = 60.0
"""How long a run's end waits for the server; `scaling sync` has more time."""
ID_MAX = 100
"""Characters of a run id that are kept; W&B takes 128 in all."""

Json = dict[str, Any]

EFFICIENCY = ("efficiency", "efficiency_low", "efficiency_high")
STEP = ("step_ms", "step_ms_low", "step_ms_high", "samples_per_s", "speedup", "efficiency_loaded")
PARTS_COLUMNS = tuple(f"parts_{field.name}_ms" for field in dataclasses.fields(Parts))
LOSS_COLUMNS = tuple(f"loss_{field.name}" for field in dataclasses.fields(Loss))


def log_run(
    folder: RunFolder,
    plan: Plan,
    analysis: Analysis,
    histories: tuple[StepHistory, ...],
) -> str | None:
    """Write the W&B runs of a run folder, in place of earlier ones; a one-line warning where that failed.

    Takes at most `sync.WRITE_BOUND_S` seconds, ONLINE_BOUND_S more in online mode, and raises nothing.
    """
    return _log(folder, plan, lambda: _document(folder, plan, analysis, histories))


def log_comparison(folder: RunFolder, plan: Plan, comparisons: Sequence[Comparison]) -> str | None:
    """Write one W&B run with the comparison's tables below `folder`, as `log_run` does a run's.

    `plan`: the base's, which says where it goes.
    """
    return _log(folder, plan, lambda: _comparison_document(folder, plan, comparisons))


def _log(folder: RunFolder, plan: Plan, document: Callable[[], Json]) -> str | None:
    mode = plan.spec.tracking.mode
    if mode == "disabled":
        return None
    try:
        sync.write(folder, document())
    except Exception as error:  # noqa: BLE001  no failure of tracking may cost a measurement
        return f"nothing was logged: {' '.join(str(error).split())}"
    if mode == "online":
        try:
            sync.sync(folder, bound_s=ONLINE_BOUND_S)
        except Exception as error:  # noqa: BLE001  likewise
            return f"{error}; they are kept offline, `scaling sync {folder.path}` tries again"
    return None


def _document(
    folder: RunFolder,
    plan: Plan,
    analysis: Analysis,
    histories: Iterable[StepHistory],
) -> Json:
    """Everything to log, as plain values: settings all runs share, and the runs."""
    run = analysis.run
    points = {p.world_size: p for p in analysis.points}
    steps = {h.world_size: _steps(h) for h in histories}
    ends = {t.world_size: {"status": t.status, "error": t.error} for t in analysis.trials}
    base = _config(folder, plan, analysis)
    title = f"{run.model} {run.topology} {run.precision} {run.mode}"
    runs: list[Json] = [
        {
            "id": f"n{trial.world_size}",
            "name": f"{title} n={trial.world_size}",
            "config": base | _trial_config(plan, trial),
            "x": "step",
            "history": steps.get(trial.world_size, []),
            "summary": _spread(ends.get(trial.world_size, {})) | _numbers(points.get(trial.world_size)),
        }
        for trial in plan.trials
    ]
    runs.append(
        {
            "id": "summary",
            "name": f"{title} summary",
            "config": base | {"world_sizes": list(plan.spec.world_sizes)},
        }
        | _summary(analysis)
    )
    return _grouped(folder, plan, runs, synthetic=run.synthetic)


def _comparison_document(folder: RunFolder, plan: Plan, comparisons: Sequence[Comparison]) -> Json:
    """One run whose tables have a row a pair of runs and world size, case, or setting that differs."""
    names = list(dict.fromkeys(name for one in comparisons for name in findings.run_names(one)))
    rows = [row for one in comparisons for row in _comparison_rows(one)]
    tables = {
        "comparison": _table(rows),
        "cases": _table([row for one in comparisons for row in _case_rows(one)]),
        "settings": _table([row for one in comparisons for row in _setting_rows(one)]),
    }
    pairs = {str(row["other"]): [r for r in rows if r["other"] == row["other"]] for row in rows}
    series = {name: [(r["world_size"], r["ratio"]) for r in of if "ratio" in r] for name, of in pairs.items()}
    chart = {
        "title": "Throughput over the base",
        "x": "world_size",
        "series": {k: v for k, v in series.items() if v},
    }
    said = {
        "comparable": all(one.comparable for one in comparisons),
        "reasons": [reason for one in comparisons for reason in one.reasons],
        "answer": [findings.comparison_answer(one) for one in comparisons],
    }
    run: Json = {
        "id": "comparison",
        "name": f"comparison of {', '.join(names)}",
        "config": {"base": plan.id, "others": [one.other.id for one in comparisons]},
        "x": "world_size",
        "history": [],
        "tables": {k: v for k, v in tables.items() if v["rows"]},
        "charts": {"ratio_chart": chart} if chart["series"] else {},
        "summary": said,
    }
    synthetic = any(one.base.synthetic or one.other.synthetic for one in comparisons)
    return _grouped(folder, plan, [run], synthetic=synthetic)


def _grouped(folder: RunFolder, plan: Plan, runs: Sequence[Json], *, synthetic: bool) -> Json:
    """Runs with ids of their own, and the settings that all of them share."""
    tracking = plan.spec.tracking
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", plan.id)[-ID_MAX:].strip("-")
    return {
        "init": {
            "dir": str(folder.wandb.resolve()),
            "project": tracking.project,
            "entity": tracking.entity,
            "group": tracking.group or plan.id,
            "job_type": tracking.job_type,
            "tags": [*tracking.tags, *(["synthetic"] if synthetic else [])],
            "notes": tracking.notes,
        },
        "runs": [one | {"id": f"{stem}-{one['id']}"} for one in runs],
    }


def _config(folder: RunFolder, plan: Plan, analysis: Analysis) -> Json:
    """The spec under the names of its overrides, and what it ran on."""
    spec = codec.encode(plan.spec)
    del spec["tracking"], spec["world_sizes"], spec["batch_per_rank"], spec["global_batch"]
    spec["env"] = {k: v for k, v in spec["env"].items() if not SECRET.search(k)}
    spec["versions"] = {"scaling": plan.version} | _versions(folder)
    flat = {k.removesuffix(".name"): v for k, v in _dotted(spec)}
    run = analysis.run
    return flat | {"run": plan.id, "device": run.device, "backend": run.backend, "launches": run.launches}


def _trial_config(plan: Plan, trial: Trial) -> Json:
    whole = {"global_batch": plan.spec.global_batch} if plan.spec.mode == "strong" else {}
    return {"world_size": trial.world_size, "hosts": trial.hosts, "batch_per_rank": trial.batch} | whole


def _versions(folder: RunFolder) -> Json:
    """Library versions as rank 0 of the last launch wrote them down, where it did."""
    try:
        found = json.loads(folder.launches()[-1].env(0).read_text(encoding="utf-8"))
    except (OSError, ValueError, IndexError):
        return {}
    return {name: found[name] for name in ("python", "torch", "cuda", "nccl") if name in found}


def _dotted(tree: Json, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value


def _steps(history: StepHistory) -> list[Json]:
    names = tuple(history.columns)
    rows = zip(*history.columns.values(), strict=True)
    return [
        {"step": i, "arm": arm} | {k: v for k, v in zip(names, row, strict=True) if v is not None}
        for i, (arm, row) in enumerate(zip(history.arm, rows, strict=True))
    ]


def _spread(named: Json) -> Json:
    """Measured numbers as `name`, `name_low` and `name_high`; what is unknown is left out."""
    flat: Json = {}
    for name, value in named.items():
        if isinstance(value, Measured):
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        elif isinstance(value, str | int | float):
            flat[name] = value
    return {k: v for k, v in flat.items() if v is not None}


def _named(pattern: str, value: Any) -> Json:
    fields = dataclasses.fields(value) if value else ()
    return {pattern.format(f.name): getattr(value, f.name) for f in fields}


def _numbers(point: Point | None) -> Json:
    """Every number of a world size under one flat name each."""
    if point is None:
        return {}
    return _spread(
        _named("{}", point)
        | _named("arms_{}_ms", point.arms_ms)
        | _named("parts_{}_ms", point.parts_ms)
        | _named("loss_{}", point.loss)
        | _named("straggler_{}", point.straggler)
        | _named("{}", point.overhead)
        | _named("{}", point.comm)
        | _named("{}", point.memory)
        | _named("clocks_{}", point.clocks)
        | _named("{}", point.cost)
    )


def _summary(analysis: Analysis) -> Json:
    rows = [_numbers(p) for p in analysis.points]
    tables = {
        "efficiency_by_world_size": _table(rows, ("world_size", "hosts", "status", *EFFICIENCY, *STEP)),
        "parts_by_world_size": _table(rows, ("world_size", *PARTS_COLUMNS)),
        "loss_waterfall": _table(_loss_rows(analysis.points)),
        "fabric_curve": _table(_fabric_rows(analysis.fabric)),
        "inference": _table([_case_row(analysis, r) for r in analysis.inference]),
        "training": _table([_case_row(analysis, r) for r in analysis.training]),
        "largest_batch": _table([_spread(_named("{}", r)) for r in analysis.largest_batch]),
        "verdicts": _table([_verdict_row(v) for v in analysis.verdicts]),
    }
    charts = {
        "efficiency_chart": _chart("Scaling efficiency", rows, EFFICIENCY),
        "parts_chart": _chart("Where a step goes, ms", rows, PARTS_COLUMNS),
        "loss_chart": _chart("Lost efficiency by cause", rows, LOSS_COLUMNS),
        "fabric_chart": _fabric_chart(analysis.fabric),
        "throughput_chart": _case_chart((*analysis.inference, *analysis.training)),
    }
    drawn = ("world_size", *EFFICIENCY, *STEP, *PARTS_COLUMNS, *LOSS_COLUMNS)
    quality = {k: v for k, v in _named("{}", analysis.quality).items() if k != "warnings"}
    sizes = {f"n{row['world_size']}/{k}": v for row in rows for k, v in row.items()}
    return {
        "x": "world_size",
        "history": [{name: row[name] for name in drawn if name in row} for row in rows],
        "tables": {k: v for k, v in tables.items() if v["rows"]},
        "charts": {k: v for k, v in charts.items() if v["series"]},
        "summary": sizes
        | _spread(quality | _named("usl_{}", analysis.fits.usl) | {"duration_s": analysis.run.duration_s})
        | {"warnings": list(analysis.quality.warnings)},
    }


def _table(rows: Sequence[Json], columns: Sequence[str] = ()) -> Json:
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    return {"columns": list(columns), "rows": [[row.get(name) for name in columns] for row in rows]}


def _loss_rows(points: Iterable[Point]) -> list[Json]:
    return [
        {"world_size": p.world_size, "cause": cause} | _spread({"share": share})
        for p in points
        for cause, share in _named("{}", p.loss).items()
        if share is not None
    ]


def _fabric_rows(fabric: Fabric) -> list[Json]:
    return [
        {"level": level.name, "world_size": level.world_size} | _spread(_named("{}", point))
        for level in fabric.levels
        for point in level.curve
    ]


def _verdict_row(verdict: Verdict) -> Json:
    remedies = {
        "evidence": "; ".join(verdict.evidence),
        "try": "; ".join(r.overrides for r in verdict.try_),
        "predicted_gain": verdict.try_[0].predicted_gain if verdict.try_ else None,
    }
    return _spread(_named("{}", verdict) | remedies)


def _comparison_rows(comparison: Comparison) -> list[Json]:
    base, other = findings.run_names(comparison)
    return [
        {"base": base, "other": other}
        | _spread(
            _named("{}", p)
            | {f"{k}_ms": v for k, v in p.causes.items()}
            | _named("split_{}", p.split)
            | _named("base_{}", p.cost.base)
            | _named("other_{}", p.cost.other)
            | {"per_usd": p.cost.per_usd, "per_joule": p.cost.per_joule}
        )
        for p in comparison.points
    ]


def _case_rows(comparison: Comparison) -> list[Json]:
    base, other = findings.run_names(comparison)
    return [
        {"base": base, "other": other}
        | _spread(
            {"world_size": c.world_size, "batch": c.batch, "ratio": c.ratio, **c.setting}
            | {"distinguishable": c.distinguishable}
            | dict(zip(("base_samples_per_s", "other_samples_per_s"), c.samples_per_s, strict=True))
        )
        for c in comparison.cases
    ]


def _setting_rows(comparison: Comparison) -> list[Json]:
    names = dict(zip(("base_run", "other_run"), findings.run_names(comparison), strict=True))
    return [names | {k: v or "" for k, v in _named("{}", s).items()} for s in comparison.settings]


def _chart(title: str, rows: Sequence[Json], columns: Iterable[str]) -> Json:
    series = {name: [(row["world_size"], row[name]) for row in rows if name in row] for name in columns}
    return {"title": title, "x": "world_size", "series": {k: v for k, v in series.items() if v}}


def _case_row(analysis: Analysis, row: Inference | Training) -> Json:
    """One case, with the device first: rows of several runs make one table of device, precision and batch."""
    device = analysis.run.device_name or analysis.run.device
    latency = _named("latency_{}_ms", getattr(row, "latency_ms", None))
    return {"device": device, "setting": cases.setting(row)} | _spread(_named("{}", row) | latency)


def _case_chart(rows: Sequence[Inference | Training]) -> Json:
    series: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.samples_per_s is not None:
            label = f"{cases.setting(row)} n={row.world_size}"
            series.setdefault(label, []).append((row.batch, row.samples_per_s.value))
    return {"title": "Samples per second", "x": "batch", "series": series}


def _fabric_chart(fabric: Fabric) -> Json:
    series: dict[str, list[tuple[float, float]]] = {}
    for level in fabric.levels:
        for point in level.curve:
            label = f"{level.name} {point.collective} n={level.world_size}"
            series.setdefault(label, []).append((point.bytes, point.busbw_gbit_s.value))
    return {"title": "Bus bandwidth, Gbit/s", "x": "bytes", "series": series}
