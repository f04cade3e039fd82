"""What a launch left behind: errors and stacks of ranks, exit codes, logs of torchrun."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaling.launchers.failure import watchdog
from scaling.reading import LOG_BYTES_MAX, RefusedError, as_number, read_json, read_text
from scaling.records.paths import LaunchFolder

Record = Mapping[str, Any]

_ENDED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s+exitcode\s*: (-?\d+)")
"""One failure in torchrun's closing list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEvidence:
    """What a launch left behind, by rank."""

    errors: Mapping[int, Record]
    """error-<r>.json in the order of writing, but first the rank that reported to the others first."""
    stacks: Mapping[int, Record]
    """stack-<r>.json, written by ranks that were told to end."""
    exits: Mapping[int, int]
    """Exit codes as torchrun lists them; -n means ended by signal n."""
    started: frozenset[int]
    """Ranks that opened a log."""
    told: frozenset[int] = frozenset()
    """Ranks that this program told to end."""
    stopped: frozenset[int] = frozenset()
    """Ranks that a signal had stopped."""
    missing: frozenset[int] = frozenset()
    """Ranks that ended while others went on."""
    silent_s: float = 0.0
    """How long there was no progress; 0 where the end was seen."""


def gather(
    launch: LaunchFolder,
    *,
    told: frozenset[int] = frozenset(),
    stopped: frozenset[int] = frozenset(),
    missing: frozenset[int] = frozenset(),
    silent_s: float = 0.0,
    ranks: Mapping[int, int] | None = None,
) -> LaunchEvidence:
    """Read what a launch left behind. `ranks`: our rank by torchrun's number, where they differ."""
    ours = ranks or {}
    errors = sorted(_records(launch, "error"), key=lambda item: (not item[1].get("first"), item[0]))
    listed = [(int(rank), int(code)) for text in printed(launch) for rank, code in _ENDED.findall(text)]
    exits = {ours.get(rank, rank): code for rank, code in listed}
    raised = {record["rank"]: record for _, record in errors}
    stacks = {record["rank"]: record for _, record in _records(launch, "stack")}
    stage = next((str(r["stage"]) for r in [*raised.values(), *stacks.values()]), "a collective")
    return LaunchEvidence(
        errors=raised | watchdog.records(launch, exits, raised, stage),
        stacks=stacks,
        exits=exits,
        started=frozenset(
            rank for path in launch.path.glob("log-*.txt") if (rank := as_number(path.stem[4:])) is not None
        ),
        told=told,
        stopped=stopped,
        missing=missing,
        silent_s=silent_s,
    )


_TEXTS = {"error": ("type", "message", "stage"), "stack": ("stage",)}
"""What every file of a kind says, beside its rank."""


def _is_record(record: Any, kind: str) -> bool:
    """Whether a file holds what a rank writes (scaling.worker.__main__)."""
    if not isinstance(record, dict) or type(record.get("rank")) is not int:
        return False
    frames = record.get("stack", [])
    texts = [*(record.get(name) for name in _TEXTS[kind]), *(frames if isinstance(frames, list) else [None])]
    return all(isinstance(text, str) for text in texts)


def printed(launch: LaunchFolder) -> list[str]:
    """The output of every torchrun."""
    found = []
    for path in [*sorted(launch.path.glob("torchrun-*.txt")), launch.launcher_log]:
        with contextlib.suppress(OSError, RefusedError):
            found.append(read_text(path, LOG_BYTES_MAX, strict=False))
    return found


def _records(launch: LaunchFolder, kind: str) -> list[tuple[int, dict[str, Any]]]:
    """(time of writing, record) of every rank that left one."""
    found = []
    for path in sorted(launch.path.glob(f"{kind}-*.json")):
        with contextlib.suppress(OSError, RefusedError):
            record = read_json(path)
            if _is_record(record, kind):
                found.append((path.stat().st_mtime_ns, record))
    return sorted(found, key=lambda item: item[0])
