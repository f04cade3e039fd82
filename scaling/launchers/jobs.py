"""Plan a request and make the run's folder; find the runs that a folder holds already.

Also which commit of the user's code is measured, and which launcher a plan asks for.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scaling.errors import InputError
from scaling.launchers.launcher import Launcher
from scaling.launchers.slurm.launcher import Slurm
from scaling.launchers.torchrun import Emulated, Local
from scaling.reading import RefusedError, as_number
from scaling.reading import read_json as read_json_value
from scaling.records.files import check_writable, make_folder, read_json, write_json, write_text
from scaling.records.paths import RunFolder, default_folder, find_run, named
from scaling.records.run import locked
from scaling.settings.plan import SCHEMA, Plan, Request, make_plan, run_id
from scaling.version import __version__

TIMEOUT_S = 5
_DESCRIBE = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def commit(folder: Path) -> str:
    """`<hash>`, or `<hash>-dirty` where tracked files were changed since; empty outside a repository or without git."""
    try:
        done = subprocess.run(
            _DESCRIBE, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run that is about to start."""

    request: Request
    plan: Plan
    folder: RunFolder


def plan_request(request: Request) -> Plan:
    """A plan with a fresh id."""
    now = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    return make_plan(
        request.spec,
        run_id=run_id(now, request.yaml),
        created=now.isoformat(timespec="seconds"),
        version=__version__,
        commit=commit(Path.cwd()),
    )


def jobs_of(asked: tuple[Request, ...], *, multirun: bool) -> list[Job]:
    """A folder for every run; those of a multirun are numbered below one."""
    jobs: list[Job] = []
    parent: Path | None = None
    for index, request in enumerate(asked):
        plan = plan_request(request)
        path = request.run_dir or parent or default_folder(plan.id)
        parent = path if multirun else None
        if multirun:
            check_room(RunFolder(path), f"run_dir={path}")
        folder = check_folder(path / str(index) if multirun else path)
        jobs.append(Job(request=request, plan=plan, folder=folder))
    return jobs


def check_room(into: RunFolder, asked: str, *, study: bool = False) -> None:
    """InputError where a comparison, or a `study`, would replace files in `into` that this program did not write.

    `asked`: what the user gave. Its own documents have a table of all runs, or points.
    """
    document, key = (into.study, "points") if study else (into.comparison, "sweep")
    pages = (into.study_html,) if study else (into.comparison_md, into.comparison_html)
    replaced = [path for path in (*pages, document) if os.path.lexists(path)]
    if not study:
        replaced += sorted(into.path.glob("comparison-*.html"))
    with contextlib.suppress(OSError, RefusedError):
        written = read_json_value(document)
        if isinstance(written, dict) and key in written:
            return
    if replaced:
        raise InputError(f"{asked}: {replaced[0].name} is there and would be replaced; name another folder")


def check_folder(path: Path) -> RunFolder:
    """Raise InputError when a run cannot be put there. Creates nothing."""
    if (path / "plan.json").exists():
        raise InputError(
            f"run_dir={path}: already holds a run; name another folder, or go on with it: `scaling run --resume {path}`"
        )
    if path.exists() and not (path.is_dir() and all(_left_by_create(p) for p in path.iterdir())):
        raise InputError(f"run_dir={path}: not an empty folder; name one that does not exist yet")
    check_writable(path, f"run_dir={path}")
    return RunFolder(path)


def create(job: Job) -> None:
    """Make the run's folder with its config and plan; InputError when it cannot be made."""
    folder = job.folder
    asked = f"run_dir={folder.path}"
    make_folder(folder.path, asked)
    try:
        with locked(folder):
            check_folder(folder.path)  # again: another run may have taken it since
            write_text(folder.config, job.request.yaml)
            write_json(folder.plan, job.plan)
    except OSError as error:  # a full disk
        raise InputError(f"{asked}: cannot be made ({error.strerror}); name a folder that can") from error


def begun(path: Path) -> list[tuple[Plan, RunFolder]]:
    """The run in a folder, or the numbered runs of a multirun below it; InputError where there is none."""
    path = named(path)
    numbered = ((as_number(p.parent.name), p.parent) for p in path.glob("*/plan.json"))
    below = sorted((number, folder) for number, folder in numbered if number is not None)
    folders = [RunFolder(folder) for _, folder in below] or [find_run(path)]
    if not folders[0].plan.is_file():
        raise InputError(
            f"{path}: has no plan.json; name the folder of a run that `scaling run` started (the records of a "
            "Probe cannot be resumed)"
        )
    return [(read_json(folder.plan, Plan, SCHEMA), folder) for folder in folders]


def _left_by_create(path: Path) -> bool:
    """Whether `create` leaves such a file when it is killed before it wrote the plan."""
    folder = RunFolder(path.parent)
    if path == folder.config:  # without a lock beside it, it is another program's
        return folder.lock.exists()
    return path == folder.lock or (path.name.startswith(".") and path.suffix == ".part")


LAUNCHERS: dict[str, Launcher] = {"local": Local(), "emulated": Emulated(), "slurm": Slurm()}


def launcher_of(plan: Plan) -> Launcher:
    """The launcher of a plan; InputError for a plan that describes a training which this program did not launch."""
    launcher = LAUNCHERS.get(plan.spec.launcher)
    if launcher is None:
        raise InputError(
            f"{plan.id}: made by launcher={plan.spec.launcher}, not planned by `scaling run`, so it cannot be "
            "launched; start a new run"
        )
    return launcher
