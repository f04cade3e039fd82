"""The main job: plan, launch, collect, analyse, report. One page."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling import __version__, git
from scaling.config import Request
from scaling.errors import InputError, ScalingError
from scaling.files import read_json, write_json, write_text
from scaling.fit import find_largest
from scaling.folders import check_writable, make_folder
from scaling.launchers.commands import command, fitting, require
from scaling.launchers.follow import describe, follow
from scaling.launchers.slurm import interruption
from scaling.lock import held
from scaling.plan import SCHEMA as PLAN_SCHEMA
from scaling.plan import Plan, make_plan, run_id
from scaling.status import SCHEMA as STATUS_SCHEMA
from scaling.status import LaunchStatus, Status, in_words, left, status_of
from scaling.store import LaunchFolder, RunFolder, default_folder


def plan_request(request: Request) -> Plan:
    """A plan with a fresh id."""
    now = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    return make_plan(
        request.spec,
        run_id=run_id(now, request.yaml),
        created=now.isoformat(timespec="seconds"),
        version=__version__,
        commit=git.commit(Path.cwd()),
    )


def check_folder(path: Path) -> RunFolder:
    """InputError when a run could not be put there. Creates nothing."""
    if (path / "plan.json").exists():
        raise InputError(
            f"run_dir={path}: already holds a run; name another folder, or go on with it: `scaling run --resume {path}`"
        )
    if path.exists() and not (path.is_dir() and all(_of_a_start(p) for p in path.iterdir())):
        raise InputError(f"run_dir={path}: not an empty folder; name one that does not exist yet")
    check_writable(path, f"run_dir={path}")
    return RunFolder(path)


def _of_a_start(path: Path) -> bool:
    """Whether a file is what `create` leaves when it is killed, or holds, before there is a plan."""
    folder = RunFolder(path.parent)
    return path in (folder.lock, folder.config) or path.suffix == ".part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run that is about to start."""

    request: Request
    plan: Plan
    folder: RunFolder


def jobs_of(
    asked: tuple[Request, ...], *, multirun: bool, parent: Path | None = None, first: int = 0
) -> list[Job]:
    """A folder for every run; those of a multirun are numbered below one, from `first` on."""
    jobs: list[Job] = []
    for index, request in enumerate(asked, first):
        plan = plan_request(request)
        path = request.run_dir or parent or default_folder(plan.id)
        parent = path if multirun else None
        folder = check_folder(path / str(index) if multirun else path)
        jobs.append(Job(request=request, plan=plan, folder=folder))
    return jobs


def begun(path: Path) -> list[tuple[Plan, RunFolder]]:
    """The run that is in a folder, or the numbered runs of a multirun below it; InputError where there is none."""
    below = [p for p in path.glob("*/plan.json") if p.parent.name.isdigit()]
    below.sort(key=lambda p: int(p.parent.name))
    folders = [RunFolder(p.parent) for p in below] or [RunFolder(path).require()]
    if not folders[0].plan.is_file():
        raise InputError(
            f"{path}: no plan.json; what `scaling run` began can be gone on with, not a Probe's records"
        )
    return [(read_json(folder.plan, Plan, PLAN_SCHEMA), folder) for folder in folders]


def create(request: Request, plan: Plan, folder: RunFolder) -> None:
    """Make the run's folder with its config and plan; InputError when it cannot be made."""
    asked = f"run_dir={folder.path}"
    make_folder(folder.path, asked)
    try:
        with held(folder):
            check_folder(folder.path)  # again: another run may have taken it meanwhile
            write_text(folder.config, request.yaml)
            write_json(folder.plan, plan)
    except OSError as error:  # a full disk
        raise InputError(f"{asked}: cannot be made ({error.strerror}); name a folder that can") from error


def measure(plan: Plan, folder: RunFolder, progress: Callable[[dict[str, Any]], None]) -> Status:
    """Launch until nothing is left, in a folder held meanwhile; goes on where an earlier call stopped.

    What was measured stays on disk whatever happens.
    """
    require(plan)
    with held(folder):
        launches = earlier_launches(folder)
        try:
            if launches:  # how a launch whose driver was killed ended is known only now
                write_json(folder.status, status_of(plan, launches))
            _measure(plan, folder, launches, progress)
        except OSError as error:  # a full disk, a folder that is gone: nothing more can be measured into it
            progress({"said": f"{folder.path}: cannot be written to any more ({error.strerror})"})
            if launches and launches[-1].state == "running":
                launches[-1] = dataclasses.replace(launches[-1], state="failed", error=str(error))
        except InputError:
            raise
        except ScalingError as error:
            # Slurm says nothing any more: what was measured is analysed all the same.
            _ended_between(plan, folder, launches, "failed", str(error))
        except KeyboardInterrupt as stop:
            if not any(launch.finished for launch in launches) or not left(plan, launches, len(launches)):
                raise
            why = interruption() if stop.args else "interrupted by Ctrl-C"
            _ended_between(plan, folder, launches, "interrupted", why)
        return status_of(plan, launches)


def _ended_between(
    plan: Plan, folder: RunFolder, launches: list[LaunchStatus], state: str, error: str
) -> None:
    """Note an end that came while no launch was followed: the one that was being prepared did not begin."""
    if not launches or launches[-1].state != "running":
        sizes = left(plan, launches, len(launches))
        launches.append(LaunchStatus(index=_free(folder, launches), world_sizes=sizes, state="running"))
    else:  # its ranks may have been through when it came
        launches[-1] = _settled(launches[-1], folder.launch(launches[-1].index))
    launches[-1] = dataclasses.replace(launches[-1], state=state, error=error)
    with contextlib.suppress(OSError):
        write_json(folder.status, status_of(plan, launches))


def _measure(
    plan: Plan,
    folder: RunFolder,
    launches: list[LaunchStatus],
    progress: Callable[[dict[str, Any]], None],
) -> None:
    """Add to `launches` until nothing is left, or somebody interrupts."""
    since = len(launches)
    if plan.spec.batch_max and (failed := _searched(plan, folder, launches, progress)) is not None:
        launches.append(failed)
        write_json(folder.status, status_of(plan, launches))
        return
    while sizes := left(plan, launches, since):
        if len(launches) > since and launches[-1].state != "done":
            progress({"said": in_words(launches[-1], sizes)})
        sizes, missing = fitting(plan, sizes)
        if missing is not None:
            progress({"said": missing})
        if not sizes:
            break
        launches.append(LaunchStatus(index=_free(folder, launches), world_sizes=sizes, state="running"))
        write_json(folder.status, status_of(plan, launches))
        launches[-1] = _launch(plan, folder, launches[-1], progress)
        write_json(folder.status, status_of(plan, launches))
        if launches[-1].state == "interrupted":
            break
    last = launches[-1] if len(launches) > since else None
    if last is not None and last.finished and last.state in ("failed", "timeout"):
        progress({"said": in_words(last, ())})


def _searched(
    plan: Plan,
    folder: RunFolder,
    launches: list[LaunchStatus],
    progress: Callable[[dict[str, Any]], None],
) -> LaunchStatus | None:
    """The search for the largest batch, before any launch measures; how it failed, where it did."""
    begin = time.monotonic()
    sizes = tuple(t.world_size for t in plan.trials)
    started = LaunchStatus(index=_free(folder, launches), world_sizes=sizes, state="running")
    write_json(folder.status, status_of(plan, [*launches, started]))
    outcome = find_largest(plan, folder, progress)
    if outcome.status == "done":
        return None
    return dataclasses.replace(
        started,
        state="failed" if outcome.status == "oom" else outcome.status,
        duration_s=round(time.monotonic() - begin, 1),
        error=outcome.error,
        rank=outcome.rank,
    )


def _launch(
    plan: Plan, folder: RunFolder, started: LaunchStatus, progress: Callable[[dict[str, Any]], None]
) -> LaunchStatus:
    """One launch from its command to its end."""
    begin, launch = time.monotonic(), folder.launch(started.index)
    launch.path.mkdir(parents=True)
    what = command(plan, folder, launch, list(started.world_sizes))
    earlier = folder.command.read_text(encoding="utf-8") if folder.command.exists() else ""
    write_text(folder.command, earlier + describe(what))
    checked = _checking(plan, launch, max(started.world_sizes), progress)
    outcome = follow(what, launch, plan.spec.measure, lambda p: checked({**p, "launch": started.index}))
    settled = _settled(started, launch, ended=outcome.status == "done")
    large = [n for n in settled.world_sizes if outcome.out_of_memory and n == outcome.world_size]
    return dataclasses.replace(
        settled,
        state=outcome.status,
        too_large=(*settled.too_large, *large),
        duration_s=round(time.monotonic() - begin, 1),
        error=outcome.error,
        rank=outcome.rank,
        world_size=outcome.world_size,
    )


def _checking(
    plan: Plan, launch: LaunchFolder, ranks: int, progress: Callable[[dict[str, Any]], None]
) -> Callable[[dict[str, Any]], None]:
    """`progress` that also says what preflight finds, once every rank has told what it runs on: in the warm-up."""
    from scaling.doctor import preflight  # noqa: PLC0415  # brings polars along, which a plan can do without

    waiting = list(range(ranks))

    def heard(record: dict[str, Any]) -> None:
        progress(record)
        if not waiting:
            return
        waiting[:] = [rank for rank in waiting if not launch.env(rank).exists()]
        for problem in () if waiting else preflight.problems(launch, plan):
            progress({"said": problem})

    return heard


def _free(folder: RunFolder, launches: list[LaunchStatus]) -> int:
    """The number of the next launch: of none that is known, nor of a folder that is there when status.json is not."""
    taken = [one.index for one in launches] + [one.index for one in folder.launches()]
    return max(taken, default=-1) + 1


def earlier_launches(folder: RunFolder) -> list[LaunchStatus]:
    """The launches that status.json knows of; one whose driver was killed is settled by what it left."""
    if not folder.status.exists():
        return []
    known = read_json(folder.status, Status, STATUS_SCHEMA).launches
    return [_settled(one, folder.launch(one.index)) if one.state == "running" else one for one in known]


def _settled(started: LaunchStatus, launch: LaunchFolder, *, ended: bool = False) -> LaunchStatus:
    """What a launch finished; where it did not end well, or nobody saw it, by its files. Lost, unless known better."""
    too_large = tuple(n for n in started.world_sizes if launch.out_of_memory(n).exists())
    whole = ended or all(_whole(launch.rank(rank)) for rank in range(max(started.world_sizes)))
    return dataclasses.replace(
        started,
        state="lost",
        finished=tuple(n for n in started.world_sizes if whole and n not in too_large),
        too_large=too_large,
        error="the program that followed it was killed",
    )


def _whole(path: Path) -> bool:
    """Whether a rank wrote its records to their end: the clock's second reading is the last line."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))  # a clock line is much shorter
            last = file.read().rstrip(b"\n").rpartition(b"\n")[2]
        return bool(json.loads(last).get("at") == "end")
    except (OSError, ValueError, AttributeError):
        return False
