"""Measure a run: one launch after the other until nothing is left to measure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from scaling.errors import InputError, ScalingError
from scaling.launchers.batch_search import find_largest
from scaling.launchers.follow import follow
from scaling.launchers.jobs import launcher_of
from scaling.launchers.launcher import LaunchRequest, Progress, describe
from scaling.launchers.reconcile import earlier_launches, end_between, next_index, settled
from scaling.launchers.slurm.allocation import interruption
from scaling.reading import read_text
from scaling.records.files import read_json, write_json, write_text
from scaling.records.launch import described, read_content
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.run import LaunchStatus, Status, in_words, left, locked, status_of
from scaling.settings.estimate import left_out_lines
from scaling.settings.plan import SCHEMA, Plan

Preflight = Callable[[LaunchFolder, Plan], Iterable[str]]
"""Checks the environments that the ranks of a launch wrote; gives a line for each problem."""


def measure(plan: Plan, folder: RunFolder, progress: Progress, preflight: Preflight) -> Status:
    """Launch until nothing is left, holding the folder's lock; goes on where an earlier call stopped.

    `preflight` is called once a launch, in its warm-up; the problems that it finds go to `progress`.

    What was measured stays on disk in every case.
    """
    launcher_of(plan).require(plan)
    with locked(folder):
        launches = earlier_launches(folder)
        try:
            if launches:  # the end of a launch whose driver was killed was settled just now
                write_json(folder.status, status_of(plan, launches))
            _measure(plan, folder, launches, progress, preflight)
        except OSError as error:  # a full disk, a removed folder: nothing more can be measured
            progress({"said": f"{folder.path}: cannot be written to any more ({error.strerror})"})
            if launches and launches[-1].state == "running":
                launches[-1] = dataclasses.replace(launches[-1], state="failed", error=str(error))
        except InputError:
            raise
        except ScalingError as error:
            # Slurm no longer answers. What was measured so far is still analysed.
            end_between(plan, folder, launches, "failed", str(error))
        except KeyboardInterrupt as stop:
            if not any(launch.finished for launch in launches) or not left(plan, launches, len(launches)):
                raise
            end_between(plan, folder, launches, "interrupted", interruption(stop))
        return status_of(plan, launches)


def _measure(
    plan: Plan, folder: RunFolder, launches: list[LaunchStatus], progress: Progress, preflight: Preflight
) -> None:
    """Add to `launches` until nothing is left, or the user interrupts."""
    since, told = len(launches), None
    if plan.spec.batch_max and (failed := _searched(plan, folder, launches, progress)) is not None:
        launches.append(failed)
        write_json(folder.status, status_of(plan, launches))
        return
    while sizes := left(plan, launches, since):
        if len(launches) > since and launches[-1].state != "done":
            progress({"said": in_words(launches[-1], sizes)})
        sizes, missing = launcher_of(plan).fitting(plan, sizes)
        if missing not in (None, told):  # it is the same before every launch
            progress({"said": missing})
            told = missing
        if not sizes:
            break
        _require_plan(plan, folder)
        launches.append(LaunchStatus(index=next_index(folder, launches), world_sizes=sizes, state="running"))
        write_json(folder.status, status_of(plan, launches))
        launches[-1] = _launch(plan, folder, launches[-1], progress, preflight)
        write_json(folder.status, status_of(plan, launches))
        if launches[-1].state == "interrupted":
            break
    last = launches[-1] if len(launches) > since else None
    if last is not None and last.finished and last.state in ("failed", "timeout"):
        progress({"said": in_words(last, ())})


def _require_plan(plan: Plan, folder: RunFolder) -> None:
    """InputError where the folder's plan is another one by now, which the ranks would refuse to follow."""
    if not folder.plan.exists() or read_json(folder.plan, Plan, SCHEMA) != plan:
        raise InputError(
            f"{folder.plan}: is not the plan that this run began with; somebody has replaced or removed it. "
            "Name a run_dir in a folder that nobody else can rename"
        )


def _searched(
    plan: Plan, folder: RunFolder, launches: list[LaunchStatus], progress: Progress
) -> LaunchStatus | None:
    """Search for the largest batch before any launch measures; None, or the status of a search that failed."""
    begin = time.monotonic()
    sizes = tuple(t.world_size for t in plan.trials)
    started = LaunchStatus(index=next_index(folder, launches), world_sizes=sizes, state="running")
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
    plan: Plan, folder: RunFolder, started: LaunchStatus, progress: Progress, preflight: Preflight
) -> LaunchStatus:
    """One launch from its command to its end."""
    begin, launch = time.monotonic(), folder.launch(started.index)
    launch.path.mkdir(parents=True)
    command = launcher_of(plan).command(
        LaunchRequest(plan=plan, folder=folder, launch=launch, world_sizes=started.world_sizes)
    )
    earlier = read_text(folder.command, strict=False) if folder.command.exists() else ""
    write_text(folder.command, earlier + describe(command), private=True)
    checked = _checking(plan, launch, max(started.world_sizes), progress, preflight)
    outcome = follow(
        command,
        launch,
        plan.spec.measure,
        lambda p: checked({**p, "launch": started.index}),
        # It finds nothing yet, and has imported what it needs before ranks measure.
        lambda: preflight(launch, plan),
    )
    ended = settled(started, launch, ended=outcome.status == "done")
    content = read_content(launch)
    for line in left_out_lines(plan, content) if content is not None else ():
        progress({"said": f"steps took longer than in the tryout: {line}"})
    large = [n for n in ended.world_sizes if outcome.out_of_memory and n == outcome.world_size]
    return dataclasses.replace(
        ended,
        state=outcome.status,
        too_large=(*ended.too_large, *large),
        duration_s=round(time.monotonic() - begin, 1),
        error=outcome.error,
        rank=outcome.rank,
        world_size=outcome.world_size,
        stage=outcome.stage,
    )


def _checking(
    plan: Plan, launch: LaunchFolder, ranks: int, progress: Progress, preflight: Preflight
) -> Progress:
    """`progress` that runs `preflight` once every rank has written its environment; it looks at hosts in turn."""
    waiting = list(enumerate(plan.spec.topology.shares(ranks)))

    def heard(record: dict[str, Any]) -> None:
        progress(record)
        if not waiting:
            return
        while waiting and described(launch, waiting[-1][0]) >= waiting[-1][1]:
            waiting.pop()
        for problem in () if waiting else preflight(launch, plan):
            progress({"said": problem})

    return heard
