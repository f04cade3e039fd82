"""Why a launch did not come to its end: the cause apart from what followed from it.

When one rank fails, its peers fail after it, because they lose the connection or wait in vain. So
the cause is, in this order: an exception that is about something else; a rank that was killed; a
rank that hung; a rank that ended without a word; and only then a lost connection.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from scaling.store import LaunchFolder

Record = Mapping[str, Any]

SECONDHAND = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|timeout|socket|"
    r"no route to host|remote process|key not found|store.*(fail|lost)",
    re.IGNORECASE,
)
"""What peers say when a rank or a link is gone."""
WAITED = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
WAITING = "/scaling/worker/control.py"
"""A rank with this in its stack waits for its turn or for the others."""

TOLD = (-signal.SIGTERM, 128 + signal.SIGTERM)

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
    silent_s: float = 0.0
    """How long nothing had been heard; 0: an end was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended: done, failed, timeout or interrupted, with the cause, its rank and its trial."""

    status: str
    error: str | None = None
    rank: int | None = None
    world_size: int | None = None
    out_of_memory: bool = False


def gather(
    launch: LaunchFolder,
    *,
    told: frozenset[int] = frozenset(),
    stopped: frozenset[int] = frozenset(),
    silent_s: float = 0.0,
    ranks: Mapping[int, int] | None = None,
) -> Evidence:
    """Read what the ranks of a launch left. `ranks`: ours, by torchrun's numbers for them where these differ."""
    ours = ranks or {}
    errors = sorted(_records(launch, "error"), key=lambda item: (not item[1].get("first"), item[0]))
    listed = [(int(rank), int(code)) for text in _printed(launch) for rank, code in _ENDED.findall(text)]
    exits = {ours.get(rank, rank): code for rank, code in listed}
    return Evidence(
        errors={record["rank"]: record for _, record in errors},
        stacks={record["rank"]: record for _, record in _records(launch, "stack")},
        exits=exits,
        started=frozenset(int(path.stem[4:]) for path in launch.path.glob("log-*.txt")),
        told=told,
        stopped=stopped,
        silent_s=silent_s,
    )


def cause(seen: Evidence, launch: LaunchFolder) -> Outcome | None:
    """The cause; None where the ranks left no word at all."""
    firsthand = [r for r in seen.errors.values() if not _secondhand(r)]
    if firsthand:
        return _raised(firsthand[0], launch)
    told = seen.told | _told_by_torchrun(seen)
    killed = [r for r, code in seen.exits.items() if r not in seen.errors and r not in told and code]
    killed.sort(key=lambda r: seen.exits[r] in TOLD)  # torchrun ends the peers of a rank that was killed
    if killed:
        return _killed(killed[0], seen, launch)
    waited = not seen.errors or any(WAITED.search(r["message"]) for r in seen.errors.values())
    hung = [r for r in sorted(seen.stopped) if r not in seen.errors]
    hung += [r for r, stack in seen.stacks.items() if waited and r not in seen.errors and not _waits(stack)]
    hung += [r for r in sorted(told) if waited and r not in seen.errors and r not in seen.stacks]
    if hung:
        return _hung(hung[0], seen, launch)
    silent = sorted(seen.started - set(seen.errors) - set(seen.stacks))
    if seen.errors and silent:
        first = next(iter(seen.errors.values()))
        text = f"rank {silent[0]} ended without a word; rank {first['rank']} then met {_told(first, launch)}"
        return Outcome(status="failed", error=text, rank=silent[0], world_size=_size(first))
    if seen.errors:
        return _parted(seen, launch)
    if seen.silent_s:
        text = f"no progress for {seen.silent_s:.0f} s, and no rank says why"
        return Outcome(status="timeout", error=text)
    return None


def _told_by_torchrun(seen: Evidence) -> frozenset[int]:
    """Ranks that SIGTERM ended because another had waited in vain.

    Had somebody ended one of them first, its peers would have lost the connection. torchrun lists those that it
    ends itself too (torch/distributed/elastic/multiprocessing/api.py, SubprocessContext._poll).
    """
    first = next(iter(seen.errors.values()), None)
    if first is None or not WAITED.search(first["message"]):
        return frozenset()
    return frozenset(rank for rank, code in seen.exits.items() if code in TOLD)


def last_words(launch: LaunchFolder, code: int) -> str:
    """The last line that looks like an error in what torchrun printed."""
    for text in _printed(launch):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line or "error" in line] or lines[-1:]
        if errors:
            return f"{errors[-1][:300]} ({launch.path})"
    return f"the launch ended with status {code}"


def _raised(error: Record, launch: LaunchFolder) -> Outcome:
    waited = _secondhand(error) and WAITED.search(error["message"])
    return Outcome(
        error=_told(error, launch),
        status="timeout" if waited else "failed",
        rank=error["rank"],
        world_size=_size(error),
        out_of_memory=bool(error.get("out_of_memory")),
    )


def _parted(seen: Evidence, launch: LaunchFolder) -> Outcome:
    """Nobody but lost connections: it is what lies between the ranks."""
    first = _raised(next(iter(seen.errors.values())), launch)
    if len(seen.errors) < 2:
        return first
    ranks = ", ".join(map(str, sorted(seen.errors)))
    text = f"ranks {ranks} lost each other, as when a link is cut: rank {first.rank}: {first.error}"
    return replace(first, error=text)


def _killed(rank: int, seen: Evidence, launch: LaunchFolder) -> Outcome:
    code, first = seen.exits[rank], next(iter([*seen.errors.values(), *seen.stacks.values()]), {})
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        how = f"was ended by {signal.Signals(number).name}"
        if number == signal.SIGKILL:
            how += " (by a person, or by a system that is out of memory: see its log)"
    else:
        how = f"ended with status {code} without a word"
    stage = f", in {first['stage']}" if first else ""
    text = f"rank {rank} {how}{stage}; log: {launch.log(rank)}"
    return Outcome(status="failed", error=text, rank=rank, world_size=_size(first))


def _hung(rank: int, seen: Evidence, launch: LaunchFolder) -> Outcome:
    stack, first = seen.stacks.get(rank, {}), next(iter(seen.errors.values()), {})
    stage = stack.get("stage") or first.get("stage") or ""
    words = [f"rank {rank} hung" + (" (stopped by a signal)" if rank in seen.stopped else "")]
    words.append(f"in {stage}" if stage else "")
    frames = stack.get("stack", [])
    if frames:
        caller = next((frame for frame in frames if "/torch/" not in frame), frames[0])
        words.append(f"at {frames[0]}" + (f", from {caller}" if caller != frames[0] else ""))
    text = " ".join(word for word in words if word)
    entered = stack.get("collective")
    text += f"; the last collective it entered: {entered}" if entered else ""
    if first.get("collective"):
        text += f"; rank {first['rank']} waited in {first['collective']}"
    where = f"stack: {launch.stack(rank)}" if stack else f"it left no stack; log: {launch.log(rank)}"
    size = _size(stack) or _size(first)
    return Outcome(status="timeout", error=f"{text}; {where}", rank=rank, world_size=size)


def _told(error: Record, launch: LaunchFolder) -> str:
    place = f" ({error['file']}:{error['line']})" if error.get("file") else ""
    return (
        f"{error['type']}: {error['message']}{place}, in {error['stage']}; log: {launch.log(error['rank'])}"
    )


def _secondhand(error: Record) -> bool:
    return error["type"] == "Aborted" or bool(SECONDHAND.search(error["message"]))


def _waits(stack: Record) -> bool:
    return any(WAITING in frame for frame in stack.get("stack", ()))


def _size(record: Record) -> int | None:
    size = str(record.get("stage", "")).partition("world size ")[2].partition(",")[0]
    return int(size) if size.isdigit() else None


def _records(launch: LaunchFolder, kind: str) -> list[tuple[int, dict[str, Any]]]:
    """(time of writing, record) of every rank that left one."""
    found = []
    for path in sorted(launch.path.glob(f"{kind}-*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append((path.stat().st_mtime_ns, json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda item: item[0])


def _printed(launch: LaunchFolder) -> list[str]:
    """What every torchrun printed."""
    found = []
    for path in [*sorted(launch.path.glob("torchrun-*.txt")), launch.path / "launcher.txt"]:
        with contextlib.suppress(OSError):
            found.append(path.read_text(encoding="utf-8", errors="replace"))
    return found
