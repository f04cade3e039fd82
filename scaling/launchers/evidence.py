"""What the ranks and the torchruns of a launch left: errors, stacks, exit codes, logs."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling.launchers import watchdog
from scaling.store import LaunchFolder

Record = Mapping[str, Any]

_ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")
"""One failure in torchrun's closing list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the ranks of a launch left, by rank."""

    errors: Mapping[int, Record]
    """error-<r>.json, in the order in which they were written; the one that told the others first is first."""
    stacks: Mapping[int, Record]
    """stack-<r>.json: those that were told to end."""
    exits: Mapping[int, int]
    """Exit codes as torchrun lists them; -n: ended by signal n."""
    started: frozenset[int]
    """Those that opened a log."""
    told: frozenset[int] = frozenset()
    """Those that had to be told to end by us."""
    stopped: frozenset[int] = frozenset()
    """Those that some signal had stopped."""
    missing: frozenset[int] = frozenset()
    """Those that ended while the others went on."""
    silent_s: float = 0.0
    """How long nothing had been heard; 0: an end was seen."""


def gather(
    launch: LaunchFolder,
    *,
    told: frozenset[int] = frozenset(),
    stopped: frozenset[int] = frozenset(),
    missing: frozenset[int] = frozenset(),
    silent_s: float = 0.0,
    ranks: Mapping[int, int] | None = None,
) -> Evidence:
    """Read what the ranks of a launch left. `ranks`: ours, by torchrun's numbers for them where these differ."""
    ours = ranks or {}
    errors = sorted(_records(launch, "error"), key=lambda item: (not item[1].get("first"), item[0]))
    listed = [(int(rank), int(code)) for text in printed(launch) for rank, code in _ENDED.findall(text)]
    exits = {ours.get(rank, rank): code for rank, code in listed}
    raised = {record["rank"]: record for _, record in errors}
    stacks = {record["rank"]: record for _, record in _records(launch, "stack")}
    stage = next((str(r["stage"]) for r in [*raised.values(), *stacks.values()]), "a collective")
    return Evidence(
        errors=raised | watchdog.records(launch, exits, raised, stage),
        stacks=stacks,
        exits=exits,
        started=frozenset(int(path.stem[4:]) for path in launch.path.glob("log-*.txt")),
        told=told,
        stopped=stopped,
        missing=missing,
        silent_s=silent_s,
    )


def printed(launch: LaunchFolder) -> list[str]:
    """What every torchrun printed."""
    found = []
    for path in [*sorted(launch.path.glob("torchrun-*.txt")), launch.launcher_log]:
        with contextlib.suppress(OSError):
            found.append(path.read_text(encoding="utf-8", errors="replace"))
    return found


def _records(launch: LaunchFolder, kind: str) -> list[tuple[int, dict[str, Any]]]:
    """(time of writing, record) of every rank that left one."""
    found = []
    for path in sorted(launch.path.glob(f"{kind}-*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append((path.stat().st_mtime_ns, json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda item: item[0])
