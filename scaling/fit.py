"""`batch=max`: launches that search for the largest batch, and fresh ones that prove what was found."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
from collections.abc import Callable
from typing import Any

from scaling.cases import variants
from scaling.errors import InputError
from scaling.files import read_json, write_json, write_text
from scaling.largest import (
    FITS,
    KILLED,
    LAUNCHES_MAX,
    OOM,
    PROOFS_MAX,
    PROVE,
    SCHEMA,
    SEARCH,
    Found,
    Largest,
    Try,
)
from scaling.launchers.cause import Outcome
from scaling.launchers.commands import command
from scaling.launchers.evidence import printed
from scaling.launchers.follow import describe, follow
from scaling.plan import Plan
from scaling.store import LaunchFolder, RunFolder

MEMORY_SIGNAL = "SIGKILL"
"""How a process ends that a cgroup's limit or the kernel's last resort has chosen."""

Progress = Callable[[dict[str, Any]], None]


def find_largest(plan: Plan, folder: RunFolder, progress: Progress) -> Outcome:
    """Search, then prove; largest.json holds all of it. Goes on where an earlier call stopped.

    Not done where something other than memory went wrong, or nothing fits.
    """
    if is_known(folder):
        return Outcome(status="done")
    largest = read_largest(folder) or Largest(
        schema=SCHEMA,
        limit_bytes=plan.spec.memory_limit_bytes,
        items=tuple(Found(variant=variant) for variant in variants(plan.spec)),
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
        return Outcome(
            status="oom", error="no batch fits: not one sample of the model, its gradients included"
        )
    return Outcome(status="done")


def is_known(folder: RunFolder) -> bool:
    """Whether an earlier call came to its end and found something."""
    largest = read_largest(folder)
    if largest is None or largest.failure is not None:
        return False
    settled = all(item.proved is not None or not item.candidate for item in largest.items)
    return settled and any(item.proved for item in largest.items)


def read_largest(folder: RunFolder) -> Largest | None:
    """What was found; None without `batch=max`, or before it was looked for."""
    if not folder.largest.is_file():
        return None
    with contextlib.suppress(InputError):
        return read_json(folder.largest, Largest, SCHEMA)
    return None


def _launch(
    plan: Plan, folder: RunFolder, index: int, what: str, largest: Largest, progress: Progress
) -> tuple[Largest, Outcome]:
    """One launch, and what is known after it. An end for want of memory is an answer, and counts as done."""
    launch = folder.search(index)
    launch.path.mkdir(parents=True)
    write_json(folder.largest, largest)
    command_ = command(plan, folder, launch, [plan.ranks], what)
    write_text(launch.path / "command.txt", describe(command_))
    outcome = follow(
        command_, launch, plan.spec.measure, lambda p: progress({**p, "launch": f"{what} {index}"})
    )
    largest, open_try = _heard(launch, largest, proving=what == PROVE)
    if outcome.status != "done" and open_try is not None and _of_memory(launch, outcome):
        said = outcome.out_of_memory
        tried = Try(batch=open_try[1], status=OOM if said else KILLED, rank=outcome.rank if said else None)
        largest = _noted(largest, open_try[0], tried, proving=what == PROVE)
        outcome = Outcome(status="done")
    if outcome.status != "done":
        largest = dataclasses.replace(largest, failure=outcome.error)
    write_json(folder.largest, largest)
    return largest, outcome


def _heard(
    launch: LaunchFolder, largest: Largest, *, proving: bool
) -> tuple[Largest, tuple[int, int] | None]:
    """What rank 0 wrote down; and (variant, batch) of a try that it did not see the end of."""
    open_try: tuple[int, int] | None = None
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = launch.tries.read_text(encoding="ascii").splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, KeyError):
            said = json.loads(line)
            variant, batch = int(said["variant"]), int(said["batch"])
            if said["status"] == "trying":
                open_try = (variant, batch)
                continue
            open_try = None
            tried = Try(
                batch=batch,
                status=said["status"],
                rank=said.get("rank"),
                peak_bytes=said.get("peak_bytes"),
            )
            largest = _noted(largest, variant, tried, proving=proving)
    return largest, open_try


def _noted(largest: Largest, variant: int, tried: Try, *, proving: bool) -> Largest:
    found = largest.items[variant]
    if not proving:
        found = dataclasses.replace(found, tries=(*found.tries, tried))
    elif tried.status == FITS:
        found = dataclasses.replace(found, proved=tried.batch)
    else:
        found = dataclasses.replace(found, refuted=(*found.refuted, tried.batch))
    items = (*largest.items[:variant], found, *largest.items[variant + 1 :])
    return dataclasses.replace(largest, items=items)


def _of_memory(launch: LaunchFolder, outcome: Outcome) -> bool:
    """Whether a launch ended for want of memory: a rank said so, or one was killed and had no time to."""
    if outcome.out_of_memory:
        return True
    return outcome.status == "failed" and any(MEMORY_SIGNAL in text for text in printed(launch))
