"""One W&B run per world size and one summary run, in one group. Renders results, computes nothing.

What to log is put together here as plain data; `scaling.report.tracking.sync` hands it to W&B.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scaling.analysis import results
from scaling.records import files
from scaling.records.launch import Environment
from scaling.records.paths import RunFolder
from scaling.report import side_by_side
from scaling.report.answer import answer
from scaling.report.tracking import sync, tables
from scaling.settings.cases import batches
from scaling.settings.environment import MACHINE, VERSIONS, is_secret
from scaling.settings.plan import Plan, Trial
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
    run = analysis.run
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
    }
    runs.append(summary | _summary(analysis))
    return _grouped(folder, plan, runs, [run])


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
        "summary": summary,
    }
    compared = [each for pair in comparisons for each in (pair.base, pair.other)]
    return _grouped(folder, plan, [run], compared)


def _stem(plan: Plan) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", plan.id)[-ID_MAX:].strip("-")


def _told(comparisons: Sequence[results.Comparison]) -> str:
    """A short hash of the compared runs, which does not depend on their order."""
    ids = sorted(pair.other.id for pair in comparisons)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:TOLD]


def _grouped(folder: RunFolder, plan: Plan, runs: list[Json], about: Sequence[results.RunInfo]) -> Json:
    """Runs, and the settings that all of them share; a tag for what is not real in any that they are `about`."""
    tracking = plan.spec.tracking
    unreal = [name for name in ("synthetic", "simulated") if any(getattr(run, name) for run in about)]
    return {
        "init": {
            "dir": str(folder.wandb.resolve()),
            "project": tracking.project,
            "entity": tracking.entity,
            "group": tracking.group or plan.id,
            "job_type": tracking.job_type,
            "tags": [*tracking.tags, *unreal],
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


def _summary(analysis: results.Analysis) -> Json:
    rows = [tables.numbers(p) for p in analysis.points]
    whole = tables.named("{}", analysis.quality) | {"duration_s": analysis.run.duration_s}
    sizes = {f"n{row['world_size']}/{k}": v for row in rows for k, v in row.items()}
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
        "summary": sizes | tables.spread(whole) | texts,
    }


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
