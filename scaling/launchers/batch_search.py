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
from scaling.settings.cases import (
    FITS,
    KILLED,
    LAUNCHES_MAX,
    OOM,
    PROOFS_MAX,
    PROVE,
    SCHEMA,
    SEARCH,
    Largest,
    Try,
    VariantSearch,
    variants,
)
from scaling.settings.plan import Plan

MEMORY_SIGNAL = "SIGKILL"
"""How a process ends when it exceeds a cgroup's memory limit, or when the kernel runs out of memory."""


def find_largest(plan: Plan, folder: RunFolder, progress: Progress) -> LaunchOutcome:
    """Search, then prove; largest.json holds every try. Goes on where an earlier call stopped.

    The outcome is not `done` where a launch failed for another reason than memory, or where nothing fits.
    """
    if is_searched(folder):
        return LaunchOutcome(status="done")
    largest = read_largest(folder) or Largest(
        schema=SCHEMA,
        limit_bytes=plan.spec.memory_limit_bytes,
        items=tuple(VariantSearch(variant=variant) for variant in variants(plan.spec)),
    )
    largest = dataclasses.replace(largest, failure=None)
    launches = itertools.count(sum(1 for _ in folder.search(0).path.parent.glob("*")))
    for _ in range(LAUNCHES_MAX):
        largest, outcome = _launch(plan, folder, next(launches), SEARCH, largest, progress)
        if outcome.status != "done":
            return outcome
        if all(item.next is None for item in largest.items):
            break
    for _ in range(PROOFS_MAX):
        if all(item.proved is not None or not item.candidate for item in largest.items):
            break
        largest, outcome = _launch(plan, folder, next(launches), PROVE, largest, progress)
        if outcome.status != "done":
            return outcome
    if not any(item.proved for item in largest.items):
        return LaunchOutcome(
            status="oom",
            error="no batch fits: one sample and the gradients need more memory than there is; use a smaller model",
        )
    return LaunchOutcome(status="done")


def is_searched(folder: RunFolder) -> bool:
    """Whether an earlier call finished and found a batch."""
    largest = read_largest(folder)
    if largest is None or largest.failure is not None:
        return False
    settled = all(item.proved is not None or not item.candidate for item in largest.items)
    return settled and any(item.proved for item in largest.items)


def _launch(
    plan: Plan, folder: RunFolder, index: int, what: str, largest: Largest, progress: Progress
) -> tuple[Largest, LaunchOutcome]:
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
    largest, open_try = _heard(launch, largest, proving=what == PROVE)
    if outcome.status != "done" and open_try is not None and _ran_out_of_memory(launch, outcome):
        oom = outcome.out_of_memory
        tried = Try(batch=open_try[1], status=OOM if oom else KILLED, rank=outcome.rank if oom else None)
        largest = _noted(largest, open_try[0], tried, proving=what == PROVE)
        outcome = LaunchOutcome(status="done")
    if outcome.status != "done":
        largest = dataclasses.replace(largest, failure=outcome.error)
    write_json(folder.largest, largest)
    return largest, outcome


def _heard(
    launch: LaunchFolder, largest: Largest, *, proving: bool
) -> tuple[Largest, tuple[int, int] | None]:
    """Add the tries that rank 0 wrote; also (variant, batch) of a try that has no result."""
    open_try: tuple[int, int] | None = None
    lines: list[bytes] = []
    with contextlib.suppress(OSError, RefusedError):
        lines = read_bytes(launch.tries).splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            record = parse_json(line)
            variant, batch = int(record["variant"]), int(record["batch"])
            if record["status"] == "trying":
                open_try = (variant, batch)
                continue
            open_try = None
            tried = Try(
                batch=batch,
                status=record["status"],
                rank=record.get("rank"),
                peak_bytes=record.get("peak_bytes"),
            )
            largest = _noted(largest, variant, tried, proving=proving)
    return largest, open_try


def _noted(largest: Largest, variant: int, tried: Try, *, proving: bool) -> Largest:
    search = largest.items[variant]
    if not proving:
        search = dataclasses.replace(search, tries=(*search.tries, tried))
    elif tried.status == FITS:
        search = dataclasses.replace(search, proved=tried.batch)
    else:
        search = dataclasses.replace(search, refuted=(*search.refuted, tried.batch))
    items = (*largest.items[:variant], search, *largest.items[variant + 1 :])
    return dataclasses.replace(largest, items=items)


def _ran_out_of_memory(launch: LaunchFolder, outcome: LaunchOutcome) -> bool:
    """Whether a launch ran out of memory: a rank reported it, or one was killed before it could."""
    if outcome.out_of_memory:
        return True
    return outcome.status == "failed" and any(MEMORY_SIGNAL in text for text in printed(launch))
