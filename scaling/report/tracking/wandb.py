"""One W&B run per world size and one summary run, in one group. Renders results, computes nothing.

What to log, alerts and the one number of a sweep among it, is put together here as plain data;
`scaling.report.tracking.sync` hands it to W&B.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.analysis import results
from scaling.plain import plain
from scaling.records import files
from scaling.records.launch import Environment
from scaling.records.paths import RunFolder
from scaling.report import cases, findings, side_by_side, text
from scaling.report.answer import answer
from scaling.report.tracking import sync, tables
from scaling.settings.cases import batches
from scaling.settings.environment import MACHINE, VERSIONS, is_secret
from scaling.settings.plan import SETTLED, Plan, Trial
from scaling.settings.run import Tracking


def run_config(environment: Environment | None, plan: Plan, run: results.RunInfo) -> Json:
    """What all world sizes share: the spec, versions, the machine, the commit that was measured.

    `environment`: what stands for the run's machine (`Launches.environment`); None where it is not known.
    """
    spec = files.encode(plan.spec)
    del spec["tracking"], spec["world_sizes"], spec["batch_per_rank"], spec["global_batch"]
    spec["env"] = {k: v for k, v in spec["env"].items() if not is_secret(k)}
    facts = environment.facts if environment else {}
    spec["versions"] = {"scaling": plan.version} | {name: facts.get(name) for name in VERSIONS}
    spec["machine"] = {name: facts.get(name) for name in ("hostname", *MACHINE, "device_memory_bytes")}
    spec["git"] = {"commit": plan.commit or None}
    flat = {k.removesuffix(".name"): v for k, v in files.flat(spec)}
    return flat | {"run": plan.id, "device": run.device, "backend": run.backend, "launches": run.launches}


def trial_config(plan: Plan, trial: Trial) -> Json:
    """What only one world size has."""
    spec = plan.spec
    config: Json = {"world_size": trial.world_size, "hosts": trial.hosts}
    if not spec.kind.by_cases or (batches(spec) == (trial.batch,) and not spec.batch_max):
        config["batch_per_rank"] = trial.batch  # a run by cases has one only where all cases have the same
    return config | ({"global_batch": spec.global_batch} if spec.mode == "strong" else {})


TITLE_MAX = 63
"""Characters of a title that W&B accepts."""

Alert = dict[str, str]


def alerts(analysis: results.Analysis) -> Iterator[Alert]:
    """The alerts of one run, each as {title, text, level}."""
    throttled = [w for w in analysis.quality.warnings if w.startswith("throttled")]
    if throttled:
        yield _alert("Throttled", analysis.run, "; ".join(throttled), "WARN")
    missing = [findings.trial_line(t) for t in analysis.trials if t.status not in SETTLED]
    if missing:
        yield _alert("Trials are missing", analysis.run, "; ".join(missing), "ERROR")


def regressions(comparisons: Sequence[results.Comparison]) -> Iterator[Alert]:
    """An alert for each run that is slower than the base. A difference within the noise raises none."""
    for pair in comparisons:
        slowdowns = list(_slower(pair)) if pair.comparable else []
        if slowdowns:
            base, other = side_by_side.run_names(pair)
            message = f"Throughput of {other} over {base}: {'; '.join(slowdowns)}."
            yield _alert("Slower than before", pair.other, message, "WARN")


def _slower(comparison: results.Comparison) -> Iterator[str]:
    """World sizes and cases at which the other run is distinguishably slower, each with its ratio."""
    for point in comparison.points:
        if point.distinguishable and point.ratio is not None and point.ratio.value < 1:
            yield f"{text.quantity(point.ratio)} at {text.ranks(point.world_size)}"
    for case in comparison.cases:
        if case.distinguishable and case.ratio is not None and case.ratio.value < 1:
            where = f"{text.ranks(case.world_size)}, {cases.compared_setting(case)}, batch {case.batch}"
            yield f"{text.quantity(case.ratio)} at {where}"


def _alert(what: str, run: results.RunInfo, message: str, level: str) -> Alert:
    title = plain(f"{what}: {run.model} on {run.topology}")[:TITLE_MAX]
    return {"title": title, "text": plain(message), "level": level}


def objective(analysis: results.Analysis, plan: Plan) -> results.Measured | None:
    """`tracking.objective` at the plan's largest world size, or the fastest case's throughput; None if not measured."""
    size = plan.ranks
    if plan.spec.kind.by_cases:
        rows: list[cases.Row] = [*analysis.inference, *analysis.training]
        rates = [row.samples_per_s for row in rows if row.world_size == size and row.samples_per_s]
        return max(rates, key=lambda m: m.value, default=None)
    value: results.Measured | None = getattr(
        results.at(size, analysis.points), plan.spec.tracking.objective, None
    )
    return value


ONLINE_BOUND_S = 60.0
"""How long the end of a run waits for the server, s; `scaling sync` waits longer."""
ID_MAX = 100
"""Characters of a run id that are kept; W&B takes 128 in all."""
TOLD = 8
"""Characters of the hash by which comparisons against one base differ."""
ARTIFACT = "scaling-run"
"""The type of the artifact that holds a run's files."""
ARTIFACT_BYTES_MAX = 100 * 2**20
"""W&B keeps a copy of the files until they are uploaded. Files beyond this size stay in the run's folder only."""

Json = dict[str, Any]


def log_run(
    folder: RunFolder,
    plan: Plan,
    analysis: results.Analysis,
    histories: tuple[results.StepHistory, ...],
    environment: Environment | None = None,
) -> str | None:
    """Write the W&B runs of a run folder, in place of earlier ones; a one-line warning where that failed.

    Takes at most `sync.WRITE_BOUND_S` seconds, ONLINE_BOUND_S more in online mode, and raises nothing.
    """
    return _log(folder, plan, lambda: _document(folder, plan, analysis, histories, environment))


def log_comparison(
    folder: RunFolder, plan: Plan, comparisons: Sequence[results.Comparison], tracking: Tracking
) -> str | None:
    """Write one W&B run with the comparison's tables below `folder`, as `log_run` does a run's.

    `plan`: the base's. `tracking` says where it goes, since the plan may be somebody else's.
    """
    plan = dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, tracking=tracking))
    return _log(folder, plan, lambda: _comparison_document(folder, plan, comparisons))


def _log(folder: RunFolder, plan: Plan, document: Callable[[], Json]) -> str | None:
    mode = plan.spec.tracking.mode
    if mode == "disabled":
        return None
    try:
        content = document()
        sync.write(folder, content)
    except Exception as error:  # noqa: BLE001  no failure of tracking may cost a measurement
        return f"nothing was logged: {' '.join(str(error).split())}"
    if mode == "online":
        try:
            sync.sync(folder, ids=[run["id"] for run in content["runs"]], bound_s=ONLINE_BOUND_S)
        except Exception as error:  # noqa: BLE001  likewise
            return f"{error}; they are kept offline, `scaling sync {folder.path}` tries again"
    return None


def _document(
    folder: RunFolder,
    plan: Plan,
    analysis: results.Analysis,
    histories: Iterable[results.StepHistory],
    environment: Environment | None,
) -> Json:
    """Everything to log, as plain values: settings all runs share, and the runs."""
    tracking, run = plan.spec.tracking, analysis.run
    points = {p.world_size: p for p in analysis.points}
    steps = {h.world_size: _steps(h) for h in histories}
    ends = {t.world_size: {"status": t.status, "error": t.error} for t in analysis.trials}
    config = run_config(environment, plan, run)
    title = f"{run.model} {run.topology} {run.precision} {run.mode}"
    stem = _stem(plan)
    runs: list[Json] = [
        {
            "id": f"{stem}-n{trial.world_size}",
            "name": f"{title} n={trial.world_size}",
            "config": config | trial_config(plan, trial),
            "x": "step",
            "history": steps.get(trial.world_size, []),
            "summary": tables.spread(ends.get(trial.world_size, {}))
            | tables.numbers(points.get(trial.world_size)),
        }
        for trial in plan.trials
    ]
    summary = {
        "id": f"{stem}-summary",
        "name": f"{title} summary",
        "config": config | {"world_sizes": list(plan.spec.world_sizes)},
        "artifact": _artifact(folder, plan, analysis, f"{ARTIFACT}-{stem}"),
        "alerts": list(alerts(analysis)) if tracking.alerts else [],
    }
    agent = _agent()
    runs.append(summary | _summary(analysis, plan) | agent.get("run", {}))
    return _grouped(folder, plan, runs, agent, kinds=_unreal([run]))


def _comparison_document(folder: RunFolder, plan: Plan, comparisons: Sequence[results.Comparison]) -> Json:
    """One run whose tables have a row a pair of runs and world size, case, or setting that differs."""
    names = list(dict.fromkeys(name for pair in comparisons for name in side_by_side.run_names(pair)))
    summary = {
        "comparable": all(pair.comparable for pair in comparisons),
        "reasons": [reason for pair in comparisons for reason in pair.reasons],
        "answer": [side_by_side.answer(pair) for pair in comparisons],
    }
    run: Json = {
        "id": f"{_stem(plan)}-{_told(comparisons)}-comparison",
        "name": f"comparison of {', '.join(names)}",
        "config": {"base": plan.id, "others": [pair.other.id for pair in comparisons]},
        "x": "world_size",
        "history": [],
        "tables": tables.comparison_tables(comparisons),
        "charts": tables.comparison_charts(comparisons),
        "alerts": list(regressions(comparisons)) if plan.spec.tracking.alerts else [],
        "summary": summary,
    }
    kinds = _unreal([each for pair in comparisons for each in (pair.base, pair.other)])
    return _grouped(folder, plan, [run], _agent(), kinds=kinds)


def _unreal(runs: Sequence[results.RunInfo]) -> list[str]:
    """Tags for what is not real in any of the runs."""
    return [name for name in ("synthetic", "simulated") if any(getattr(run, name) for run in runs)]


def _stem(plan: Plan) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", plan.id)[-ID_MAX:].strip("-")


def _told(comparisons: Sequence[results.Comparison]) -> str:
    """A short hash of the compared runs, which does not depend on their order."""
    ids = sorted(pair.other.id for pair in comparisons)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:TOLD]


def _grouped(folder: RunFolder, plan: Plan, runs: list[Json], agent: Json, *, kinds: list[str]) -> Json:
    """Runs, and the settings that all of them share."""
    tracking = plan.spec.tracking
    return {
        "init": {
            "dir": str(folder.wandb.resolve()),
            "project": agent.get("project") or tracking.project,
            "entity": agent.get("entity") or tracking.entity,
            "group": tracking.group or plan.id,
            "job_type": tracking.job_type,
            "tags": [*tracking.tags, *kinds],
            "notes": tracking.notes,
        },
        "commit": plan.commit,
        "runs": runs,
    }


def _steps(history: results.StepHistory) -> list[Json]:
    """A row a step; `contended` as 0 or 1, which W&B can draw."""
    flags = tuple(None if flag is None else int(flag) for flag in history.contended)
    columns = {**history.columns, "contended": flags}
    rows = zip(*columns.values(), strict=True)
    return [
        {"step": i, "arm": arm} | {k: v for k, v in zip(columns, row, strict=True) if v is not None}
        for i, (arm, row) in enumerate(zip(history.arm, rows, strict=True))
    ]


def _summary(analysis: results.Analysis, plan: Plan) -> Json:
    rows = [tables.numbers(p) for p in analysis.points]
    quality = {
        k: v for k, v in tables.named("{}", analysis.quality).items() if k not in ("warnings", "reached")
    }
    sizes = {f"n{row['world_size']}/{k}": v for row in rows for k, v in row.items()}
    whole = {"duration_s": analysis.run.duration_s, "objective": objective(analysis, plan)}
    texts = {
        "answer": answer(analysis),
        "warnings": list(analysis.quality.warnings),
        "reached": list(analysis.quality.reached),
    }
    return {
        "x": "world_size",
        "history": [{name: row[name] for name in tables.DRAWN if name in row} for row in rows],
        "tables": tables.tables(analysis),
        "charts": tables.charts(analysis),
        "summary": sizes | tables.spread(quality | whole) | texts,
    }


def _agent() -> Json:
    """The id that a W&B sweep's agent gave to its run. The summary run takes it, because it has the objective."""
    sweep, run = os.environ.get("WANDB_SWEEP_ID"), os.environ.get("WANDB_RUN_ID")
    if not sweep or not run:
        return {}
    place = {name: os.environ.get(f"WANDB_{name.upper()}") for name in ("project", "entity")}
    return {"run": {"id": run, "sweep": sweep}} | place


def _artifact(folder: RunFolder, plan: Plan, analysis: results.Analysis, name: str) -> Json:
    """The run's files below their names in its folder, the smallest first where not all may go."""
    kept: dict[str, str] = {}
    left_out: list[str] = []
    room = ARTIFACT_BYTES_MAX
    for path in sorted(_files(folder), key=lambda p: p.stat().st_size):
        below = path.relative_to(folder.path).as_posix()
        room -= path.stat().st_size
        if room < 0:
            left_out.append(below)
        else:
            kept[below] = str(path.resolve())
    run = analysis.run
    about = {
        "run": plan.id,
        "model": run.model,
        "topology": run.topology,
        "precision": run.precision,
        "mode": run.mode,
        "task": run.task,
        "world_sizes": list(plan.spec.world_sizes),
        "synthetic": run.synthetic,
        "simulated": run.simulated,
        "commit": plan.commit,
        "version": plan.version,
        "answer": answer(analysis),
        "left_out": left_out,
    }
    return {"name": name, "type": ARTIFACT, "metadata": about, "files": kept}


def _files(folder: RunFolder) -> Iterator[Path]:
    """The files of a run, without W&B's own, locks, and what links lead to."""
    root = folder.path.resolve()
    for path in (path for glob in ("*", "*.parquet/*", "launches/*/*") for path in folder.path.glob(glob)):
        if path.is_file() and path.resolve() == root / path.relative_to(folder.path) and path.name[0] != ".":
            yield path
