"""All contact with W&B: its SDK and its commands run in processes of their own, each within a bound.

Runs are written as offline files first and uploaded from there, so a server that is slow or
away never holds up or changes anything, and nothing of W&B's (hooks, threads, variables)
reaches the process that measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.records.paths import RunFolder
from scaling.units import count

WRITE_BOUND_S = 60.0
UPLOAD_BOUND_S = 600.0
LINE_MAX = 300
"""Characters of another program's message that are shown."""

SERVER_VARIABLES = frozenset(
    {
        "WANDB_API_KEY",
        "WANDB_APP_URL",
        "WANDB_BASE_URL",
        "WANDB_CONFIG_DIR",
        "WANDB_CREDENTIALS_FILE",
        "WANDB_ENTITY",
        "WANDB_HTTP_PROXY",
        "WANDB_HTTPS_PROXY",
        "WANDB_IDENTITY_TOKEN_FILE",
        "WANDB_INSECURE_DISABLE_SSL",
        "WANDB_X_EXTRA_HTTP_HEADERS",
        "WANDB_X_PROXIES",
    }
)
"""Variables that say who the user is and how to reach the server. W&B's other variables (mode, run id, sweep, ...)
belong to the user's own training and would redirect these runs."""

QUIET = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "init_timeout": 20,
    "quiet": True,
    "sagemaker_disable": True,
    "save_code": False,
    "silent": True,
    "symlink": False,
    "use_dot_wandb": False,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}
"""Settings of every run: W&B collects nothing by itself and prints nothing."""


def write(folder: RunFolder, document: dict[str, Any], *, bound_s: float = WRITE_BOUND_S) -> None:
    """Write the W&B runs of a document (see `wandb.py` beside this) below a folder, in place of earlier copies.

    Run ids are stable and each run holds its whole history, so earlier copies are replaced. They are restored where
    writing fails, which raises ScalingError or OSError. Nothing else in the folder is touched, since it may hold
    W&B runs of the user.
    """
    current, before = _offline_runs(folder), folder.wandb / ".wandb-before"
    ids = [record["id"] for record in document["runs"]]
    data = f"scaling-{ids[-1]}" if ids else ""
    shutil.rmtree(before, ignore_errors=True)
    _move(_ours(current, ids, data), before)
    try:
        text, module = json.dumps(document, allow_nan=False), ["scaling.report.tracking.sync"]
        _run_module(folder, module, bound_s=bound_s, text=text, check=True, data=data)
    except BaseException:
        for path in _ours(current, ids, data):
            shutil.rmtree(path, ignore_errors=True)
        _move(sorted(before.glob("*")), current)
        for empty in (before, current):
            with contextlib.suppress(OSError):
                empty.rmdir()
        raise
    shutil.rmtree(before, ignore_errors=True)
    for path in (path for run in _ours(current, ids, data) for path in run.rglob("*")):
        if path.is_symlink() and not path.exists():  # a link to a log of W&B's that offline runs do not have
            path.unlink()


def _offline_runs(folder: RunFolder) -> Path:
    """Where W&B's runs of a run lie. InputError where that leads elsewhere: W&B runs that lie there are another's."""
    path = folder.wandb / "wandb"
    if path.is_symlink():
        raise InputError(f"{path}: is a link; the folder of this run's own W&B runs is expected")
    return path


def _ours(current: Path, ids: Sequence[str], data: str) -> list[Path]:
    """The folders of these runs, and `data`, where tables and files wait for the upload; only those that exist."""
    runs = [path for path in current.glob("offline-run-*") if run_id(path) in ids]
    return sorted(path for path in (*runs, *([current / data] if data else [])) if path.is_dir())


def run_id(path: Path) -> str:
    """The id of an offline run, from the name of its folder: offline-run-<date>_<time>-<id>."""
    return path.name.removeprefix("offline-run-").partition("-")[2]


def _move(paths: Sequence[Path], into: Path) -> None:
    for path in paths:
        into.mkdir(exist_ok=True)
        path.rename(into / path.name)


def sync(folder: RunFolder, *, ids: Sequence[str] | None = None, bound_s: float = UPLOAD_BOUND_S) -> str:
    """Upload the offline W&B runs of a folder, or those of `ids`, within `bound_s` seconds; says so in one line."""
    runs = sorted(_offline_runs(folder).resolve().glob("offline-run-*"))
    runs = [run for run in runs if ids is None or run_id(run) in ids]
    if not runs:
        raise ScalingError(f"{folder.path}: no W&B runs to upload; tracking=offline and online write them")
    pending, output = [run for run in runs if not _uploaded(run)], ""
    if not pending:
        return f"{count(len(runs), 'W&B run')} uploaded before, nothing to do"
    try:
        output = _run_module(folder, ["wandb", "sync", *map(str, pending)], bound_s=bound_s)
        reason = _reason(output)
    except (ScalingError, OSError) as error:
        reason = str(error)
    # `wandb sync` exits with 0 even when the server cannot be reached; the marks that it leaves show what was uploaded.
    left = [run for run in pending if not _uploaded(run)]
    if left:
        raise ScalingError(f"{len(left)} of {count(len(runs), 'W&B run')} not uploaded: {reason}")
    links = sorted(re.findall(r"View run .* at (\S+)", output))  # the summary run's comes last
    return f"{count(len(pending), 'W&B run')} uploaded{''.join(f', see {link}' for link in links[-1:])}"


def _run_module(
    folder: RunFolder,
    arguments: Sequence[str],
    *,
    bound_s: float,
    text: str = "",
    check: bool = False,
    data: str = "",
) -> str:
    """Output of `python -m *arguments` with `text` on its input; killed after `bound_s` seconds.

    Output goes to a file: W&B's service process inherits it, and would keep a pipe open after its parent.
    `data`: see `_ours`.
    """
    # W&B's service may still write after its parent was killed.
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with tempfile.TemporaryFile("w+", errors="replace") as output, scratch as scratch_folder:
        try:
            done = subprocess.run(
                [sys.executable, "-m", *arguments],
                input=text,
                text=True,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(folder.wandb.resolve(), scratch_folder, data),
                timeout=bound_s,
                # W&B would ask wandb/settings of the working directory, which may be a run's, for the server.
                cwd=scratch_folder,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ScalingError(f"not done within {bound_s:g} s") from error
        output.seek(0)
        printed = output.read()
    if check and done.returncode:
        raise ScalingError(_reason(printed))
    return printed


def _environment(root: Path, scratch: str, data: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") or k in SERVER_VARIABLES}
    return kept | {
        "PYTHONPATH": resources.import_path(),
        "PYTHONSAFEPATH": "1",
        "WANDB_DIR": str(root),
        # Tables wait here for their upload, not in the user's home.
        "WANDB_DATA_DIR": str(root / "wandb" / data),
        "WANDB_CACHE_DIR": scratch,
        "TMPDIR": scratch,  # where its own temporary folders stay when it is killed
        "WANDB_ERROR_REPORTING": "false",  # an offline run makes no connection at all
        "WANDB_X_GRAPHQL_RETRY_MAX": "3",  # W&B's own patience is days
    }


def _reason(output: str) -> str:
    """The line of a program's output that best explains the failure: the first error, else the last line."""
    lines = [line.removeprefix("wandb:").strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error") and "error logs at" not in line]
    reason = errors[0] if errors else [*lines, "no message"][max(len(lines) - 1, 0)]
    return reason.removeprefix("ERROR").removeprefix("Error:").strip()[:LINE_MAX]


def _uploaded(run: Path) -> bool:
    return any(run.glob("*.wandb.synced"))


def _replay(document: dict[str, Any]) -> None:
    """Log a document through W&B's SDK: one process, and one service of W&B's, for all its runs."""
    import wandb  # noqa: PLC0415  a third of a second, and only this process needs it

    quiet: dict[str, Any] = {k: v for k, v in QUIET.items() if k in wandb.Settings.model_fields}
    for record in document["runs"]:
        commit = {"git_commit": document["commit"]} if document.get("commit") else {}
        run = wandb.init(
            **document["init"],
            mode="offline",
            id=record["id"],
            name=record["name"],
            config=record["config"],
            settings=wandb.Settings(**quiet, **commit),
        )
        _log(run, record)
        run.finish(exit_code=0 if record["summary"].get("status", "done") == "done" else 1)


def _log(run: Any, record: dict[str, Any]) -> None:
    """One run: history on its own axis, tables and charts, files, and the figures of its summary."""
    import wandb  # noqa: PLC0415

    run.define_metric(record["x"], hidden=True, summary="none")
    for name in sorted({name for row in record["history"] for name in row} - {record["x"]}):
        run.define_metric(name, step_metric=record["x"], summary="none")
    for row in record["history"]:
        run.log(row)
    media = {
        k: wandb.Table(columns=t["columns"], data=t["rows"]) for k, t in record.get("tables", {}).items()
    }
    media |= {k: _chart(chart) for k, chart in record.get("charts", {}).items()}
    if media:
        run.log(media)
    if "artifact" in record:
        about = record["artifact"]
        artifact = wandb.Artifact(about["name"], type=about["type"], metadata=about["metadata"])
        for name, path in about["files"].items():
            artifact.add_file(path, name=name)
        run.log_artifact(artifact)
    run.summary.update(record["summary"])


def _chart(chart: dict[str, Any]) -> Any:
    import wandb  # noqa: PLC0415

    if chart["kind"] == "line":
        xs, ys = ([[pair[i] for pair in pairs] for pairs in chart["series"].values()] for i in (0, 1))
        keys = list(chart["series"])
        return wandb.plot.line_series(xs, ys, keys=keys, title=chart["title"], xname=chart["x"])
    label, value = chart["label"], chart["value"]
    table = wandb.Table(columns=[label, value], data=[list(bar) for bar in chart["bars"]])
    return wandb.plot.bar(table, label, value, title=chart["title"])


if __name__ == "__main__":
    _replay(json.load(sys.stdin))
