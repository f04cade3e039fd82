"""Measure a run: one launch after the other until nothing is left to measure. `batch=max` searches before them.

A launch's end may not have been seen, because the program that followed it was killed or interrupted. Its files then
say how it stands.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from scaling.errors import InputError, ScalingError
from scaling.launchers.failure.cause import LaunchOutcome
from scaling.launchers.failure.evidence import printed
from scaling.launchers.follow import follow
from scaling.launchers.jobs import launcher_of
from scaling.launchers.launcher import LaunchRequest, Progress, describe
from scaling.launchers.slurm.queue import interruption
from scaling.reading import RefusedError, parse_json, read_bytes, read_tail, read_text
from scaling.records.files import read_if_whole, read_json, write_json, write_text
from scaling.records.launch import described, read_content
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.run import STATUS_SCHEMA, LaunchStatus, Status, in_words, left, locked, status_of
from scaling.settings import cases
from scaling.settings.estimate import left_out_lines
from scaling.settings.plan import SCHEMA, Plan

END_LINE_BYTES = 4096
"""A rank file's last line is shorter than this."""
MEMORY_SIGNAL = "SIGKILL"
"""How a process ends when it exceeds a cgroup's memory limit, or when the kernel runs out of memory."""


def earlier_launches(folder: RunFolder) -> list[LaunchStatus]:
    """The launches in status.json. One that is still called running gets its state from the files it left."""
    if not folder.status.exists():
        return []
    launches = read_json(folder.status, Status, STATUS_SCHEMA).launches
    return [settled(s, folder.launch(s.index)) if s.state == "running" else s for s in launches]


def next_index(folder: RunFolder, launches: list[LaunchStatus]) -> int:
    """The number of the next launch: higher than all in `launches`, and than all folders where status.json is lost."""
    numbers = [launch.index for launch in launches] + [launch.index for launch in folder.launches()]
    return max(numbers, default=-1) + 1


def settled(started: LaunchStatus, launch: LaunchFolder, *, ended: bool = False) -> LaunchStatus:
    """Which world sizes a launch finished, by its files where `ended` is false. The state is lost until set."""
    too_large = tuple(n for n in started.world_sizes if launch.out_of_memory(n).exists())
    content = read_content(launch)
    left_out = tuple(n for n in started.world_sizes if content is not None and not content.holds(n))
    whole = ended or all(_whole(launch.rank(rank)) for rank in range(max(started.world_sizes)))
    return dataclasses.replace(
        started,
        state="lost",
        finished=tuple(n for n in started.world_sizes if whole and n not in (*too_large, *left_out)),
        too_large=too_large,
        left_out=left_out,
        error="the program that followed it was killed",
    )


def end_between(plan: Plan, folder: RunFolder, launches: list[LaunchStatus], state: str, error: str) -> None:
    """Note an end that came while no launch was followed, as the end of the launch that was being prepared."""
    if not launches or launches[-1].state != "running":
        sizes = left(plan, launches, len(launches))
        launches.append(LaunchStatus(index=next_index(folder, launches), world_sizes=sizes, state="running"))
    else:  # its ranks may have finished before the end came
        launches[-1] = settled(launches[-1], folder.launch(launches[-1].index))
    launches[-1] = dataclasses.replace(launches[-1], state=state, error=error)
    with contextlib.suppress(OSError):
        write_json(folder.status, status_of(plan, launches))


def _whole(path: Path) -> bool:
    """Whether a rank wrote its records to their end."""
    try:
        last = read_tail(path, END_LINE_BYTES).rstrip(b"\n").rpartition(b"\n")[2]
        return bool(parse_json(last).get("t") == "end")
    except (OSError, ValueError, AttributeError):
        return False


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


def find_largest(plan: Plan, folder: RunFolder, progress: Progress) -> LaunchOutcome:
    """Search for the largest batch, then prove it in fresh processes; largest.json holds every try.

    Goes on where an earlier call stopped. The outcome is not `done` where a launch failed for another reason than
    memory, or where nothing fits.
    """
    largest = read_if_whole(folder.largest, cases.Largest, cases.SCHEMA) or cases.Largest(
        schema=cases.SCHEMA,
        limit_bytes=plan.spec.memory_limit_bytes,
        items=tuple(cases.VariantSearch(variant=variant) for variant in cases.variants(plan.spec)),
    )
    if largest.failure is None and largest.settled and any(item.proved for item in largest.items):
        return LaunchOutcome(status="done")
    largest = dataclasses.replace(largest, failure=None)
    launches = itertools.count(sum(1 for _ in folder.search(0).path.parent.glob("*")))
    for _ in range(cases.LAUNCHES_MAX):
        largest, outcome = _search_launch(plan, folder, next(launches), cases.SEARCH, largest, progress)
        if outcome.status != "done":
            return outcome
        if all(item.next is None for item in largest.items):
            break
    for _ in range(cases.PROOFS_MAX):
        if largest.settled:
            break
        largest, outcome = _search_launch(plan, folder, next(launches), cases.PROVE, largest, progress)
        if outcome.status != "done":
            return outcome
    if not any(item.proved for item in largest.items):
        return LaunchOutcome(
            status="oom",
            error="no batch fits: one sample and the gradients need more memory than there is; use a smaller model",
        )
    return LaunchOutcome(status="done")


def _search_launch(
    plan: Plan, folder: RunFolder, index: int, what: str, largest: cases.Largest, progress: Progress
) -> tuple[cases.Largest, LaunchOutcome]:
    """One launch, and the result after it. Running out of memory is an answer, so it counts as done."""
    launch = folder.search(index)
    launch.path.mkdir(parents=True)
    write_json(folder.largest, largest)
    command = launcher_of(plan).command(
        LaunchRequest(plan=plan, folder=folder, launch=launch, world_sizes=(plan.ranks,), what=what)
    )
    write_text(launch.path / "command.txt", describe(command), private=True)
    outcome = follow(
        command, launch, plan.spec.measure, lambda p: progress({**p, "launch": f"{what} {index}"})
    )
    largest, open_try = _heard(launch, largest, proving=what == cases.PROVE)
    if outcome.status != "done" and open_try is not None and _ran_out_of_memory(launch, outcome):
        variant, batch = open_try
        status, rank = (cases.OOM, outcome.rank) if outcome.out_of_memory else (cases.KILLED, None)
        tried = cases.Try(batch=batch, status=status, rank=rank)
        largest = _noted(largest, variant, tried, proving=what == cases.PROVE)
        outcome = LaunchOutcome(status="done")
    if outcome.status != "done":
        largest = dataclasses.replace(largest, failure=outcome.error)
    write_json(folder.largest, largest)
    return largest, outcome


def _heard(
    launch: LaunchFolder, largest: cases.Largest, *, proving: bool
) -> tuple[cases.Largest, tuple[int, int] | None]:
    """Add the tries that rank 0 wrote; also (variant, batch) of a try that has no result."""
    open_try: tuple[int, int] | None = None
    lines: list[bytes] = []
    with contextlib.suppress(OSError, RefusedError):
        lines = read_bytes(launch.tries).splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = parse_json(line)
            variant, batch, status = int(record["variant"]), int(record["batch"]), record["status"]
            open_try = (variant, batch) if status == "trying" else None
            if open_try is None:
                rank, peak_bytes = record.get("rank"), record.get("peak_bytes")
                tried = cases.Try(batch=batch, status=status, rank=rank, peak_bytes=peak_bytes)
                largest = _noted(largest, variant, tried, proving=proving)
    return largest, open_try


def _noted(largest: cases.Largest, variant: int, tried: cases.Try, *, proving: bool) -> cases.Largest:
    search = largest.items[variant]
    if not proving:
        search = dataclasses.replace(search, tries=(*search.tries, tried))
    elif tried.status == cases.FITS:
        search = dataclasses.replace(search, proved=tried.batch)
    else:
        search = dataclasses.replace(search, refuted=(*search.refuted, tried.batch))
    items = (*largest.items[:variant], search, *largest.items[variant + 1 :])
    return dataclasses.replace(largest, items=items)


def _ran_out_of_memory(launch: LaunchFolder, outcome: LaunchOutcome) -> bool:
    """Whether a launch ran out of memory: a rank reported it, or one was killed before it could."""
    killed = outcome.status == "failed" and any(MEMORY_SIGNAL in text for text in printed(launch))
    return killed or outcome.out_of_memory
