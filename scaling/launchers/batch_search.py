"""`batch=max`: launches that search for the largest batch, then fresh ones that prove it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools

from scaling.launchers.failure.cause import LaunchOutcome
from scaling.launchers.failure.evidence import printed
from scaling.launchers.follow import follow
from scaling.launchers.jobs import launcher_of
from scaling.launchers.launcher import LaunchRequest, Progress, describe
from scaling.reading import RefusedError, parse_json, read_bytes
from scaling.records.files import write_json, write_text
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.run import read_largest
from scaling.settings import cases
from scaling.settings.plan import Plan

MEMORY_SIGNAL = "SIGKILL"
"""How a process ends when it exceeds a cgroup's memory limit, or when the kernel runs out of memory."""


def find_largest(plan: Plan, folder: RunFolder, progress: Progress) -> LaunchOutcome:
    """Search, then prove; largest.json holds every try. Goes on where an earlier call stopped.

    The outcome is not `done` where a launch failed for another reason than memory, or where nothing fits.
    """
    largest = read_largest(folder) or cases.Largest(
        schema=cases.SCHEMA,
        limit_bytes=plan.spec.memory_limit_bytes,
        items=tuple(cases.VariantSearch(variant=variant) for variant in cases.variants(plan.spec)),
    )
    if largest.failure is None and largest.settled and any(item.proved for item in largest.items):
        return LaunchOutcome(status="done")
    largest = dataclasses.replace(largest, failure=None)
    launches = itertools.count(sum(1 for _ in folder.search(0).path.parent.glob("*")))
    for _ in range(cases.LAUNCHES_MAX):
        largest, outcome = _launch(plan, folder, next(launches), cases.SEARCH, largest, progress)
        if outcome.status != "done":
            return outcome
        if all(item.next is None for item in largest.items):
            break
    for _ in range(cases.PROOFS_MAX):
        if largest.settled:
            break
        largest, outcome = _launch(plan, folder, next(launches), cases.PROVE, largest, progress)
        if outcome.status != "done":
            return outcome
    if not any(item.proved for item in largest.items):
        return LaunchOutcome(
            status="oom",
            error="no batch fits: one sample and the gradients need more memory than there is; use a smaller model",
        )
    return LaunchOutcome(status="done")


def _launch(
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
