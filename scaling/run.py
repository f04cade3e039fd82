"""The main job: plan, launch, collect, analyse, report. One page."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling import __version__
from scaling.config import Request
from scaling.errors import InputError
from scaling.launchers.commands import command
from scaling.launchers.follow import Outcome, describe, follow
from scaling.plan import Plan, make_plan, run_id
from scaling.store import RunFolder, default_folder, write_json, write_text

STATUS_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStatus:
    """How one trial stands: planned running done failed oom timeout lost interrupted, with the first error."""

    world_size: int
    status: str
    error: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """status.json: how the run and each of its trials stand."""

    schema: int
    state: str
    started: str
    duration_s: float
    launches: int
    trials: tuple[TrialStatus, ...]


def plan_request(request: Request) -> Plan:
    """A plan with a fresh id."""
    now = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    return make_plan(
        request.spec,
        run_id=run_id(now, request.yaml),
        created=now.isoformat(timespec="seconds"),
        version=__version__,
    )


def check_folder(path: Path) -> RunFolder:
    """InputError when a run could not be put there. Creates nothing."""
    if (path / "plan.json").exists():
        raise InputError(
            f"run_dir={path}: already holds a run; name another folder, or `scaling analyze {path}`"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"run_dir={path}: not an empty folder; name one that does not exist yet")
    parent = next(p for p in [path, *path.absolute().parents] if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"run_dir={path}: {parent} cannot be written to; name a folder that can")
    return RunFolder(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run that is about to start."""

    request: Request
    plan: Plan
    folder: RunFolder


def jobs_of(asked: tuple[Request, ...], *, multirun: bool) -> list[Job]:
    """A folder for every run; those of a multirun are numbered below one."""
    jobs: list[Job] = []
    parent: Path | None = None
    for index, request in enumerate(asked):
        plan = plan_request(request)
        path = request.run_dir or parent or default_folder(plan.id)
        parent = path if multirun else None
        folder = check_folder(path / str(index) if multirun else path)
        jobs.append(Job(request=request, plan=plan, folder=folder))
    return jobs


def create(request: Request, plan: Plan, folder: RunFolder) -> None:
    """Make the run's folder with its config and plan; InputError when it cannot be made."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"run_dir={folder.path}: cannot be made ({error.strerror}); name a folder that can"
        ) from error
    write_text(folder.config, request.yaml)
    write_json(folder.plan, plan)


def measure(plan: Plan, folder: RunFolder, progress: Callable[[dict[str, Any]], None]) -> Status:
    """Run every launch of a plan; what was measured stays on disk whatever happens."""
    begin, outcome, launches = time.monotonic(), Outcome(status="planned"), 0
    status = _status(plan, "running", begin, outcome, launches)
    write_json(folder.status, status)
    texts = []
    for index in range(plan.spec.repeats):
        launch = folder.launch(index)
        launch.path.mkdir(parents=True)
        what = command(plan, folder, launch, [t.world_size for t in plan.trials])
        texts.append(describe(what))
        write_text(folder.command, "".join(texts))
        outcome = follow(what, launch, plan.spec.measure, lambda p, k=index: progress({**p, "launch": k}))  # type: ignore[misc]
        launches += 1
        if outcome.status != "done":
            break
    status = _status(plan, outcome.status, begin, outcome, launches)
    write_json(folder.status, status)
    return status


def _status(plan: Plan, state: str, begin: float, outcome: Outcome, launches: int) -> Status:
    return Status(
        schema=STATUS_SCHEMA,
        state=state,
        started=plan.created,
        duration_s=round(time.monotonic() - begin, 1),
        launches=launches,
        trials=tuple(_trial(t.world_size, state, outcome) for t in plan.trials),
    )


def _trial(world_size: int, state: str, outcome: Outcome) -> TrialStatus:
    """A failure belongs to the trial it happened in; the launch's other trials are cut off by it."""
    if outcome.world_size not in (None, world_size):
        error = f"cut off when world size {outcome.world_size} {state}"
        return TrialStatus(world_size=world_size, status="lost", error=error)
    return TrialStatus(world_size=world_size, status=state, error=outcome.error, rank=outcome.rank)
