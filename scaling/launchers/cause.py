"""Why a launch did not come to its end: the cause apart from what followed from it.

When one rank fails, its peers fail after it, because they lose the connection or wait in vain. So
the cause is, in this order: an exception that is about something else; a rank that was killed; a
rank that hung; a rank that ended without a word; and only then a lost connection.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace

from scaling.launchers import watchdog
from scaling.launchers.evidence import Evidence, Record, printed
from scaling.store import LaunchFolder

SECONDHAND = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|timeout|socket|"
    r"no route to host|remote process|key not found|store.*(fail|lost)|communicator was aborted",
    re.IGNORECASE,
)
"""What peers say when a rank or a link is gone."""
OF_THE_DEVICE = re.compile(r"CUDA error")
"""Never secondhand, also where a kernel timed out."""
OF_ITS_OWN = "NoBatchError"
"""What a rank raises when its own input fails (scaling/worker/feed.py), whatever words that brings along."""
WAITED = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
LIBRARY = re.compile(r"/torch/|/lib/python3")
"""Frames that say less than whoever called them."""
ERROR = re.compile(r"Error|error")
NO_CAUSE = re.compile(r"SIGTERM|SignalException|signal: 15|death signal|error_file|elastic/errors")
"""What a torchrun prints that was told to end, and its pointers to more."""
WAITING = "/scaling/worker/control.py"
"""A rank with this in its stack waits for its turn or for the others."""

TOLD = (-signal.SIGTERM, 128 + signal.SIGTERM)
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended: done, failed, timeout or interrupted, with the cause, its rank and its trial."""

    status: str
    error: str | None = None
    rank: int | None = None
    world_size: int | None = None
    out_of_memory: bool = False


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
    silent = sorted((seen.missing or seen.started) - set(seen.errors) - set(seen.stacks))
    if seen.missing and silent:
        return _vanished(silent[0], seen, launch)
    waited = not seen.errors or any(WAITED.search(r["message"]) for r in seen.errors.values())
    hung = sorted(seen.stopped)  # also one that met its peers' end once it went on
    hung += [r for r, stack in seen.stacks.items() if waited and r not in seen.errors and not _waits(stack)]
    hung += [r for r in sorted(told) if waited and r not in seen.errors and r not in seen.stacks]
    if hung:
        return _hung(hung[0], seen, launch)
    if seen.errors and silent:
        first = next(iter(seen.errors.values()))
        text = f"rank {silent[0]} ended without a word; rank {first['rank']} then met {_told(first, launch)}"
        return Outcome(status="failed", error=text, rank=silent[0], world_size=_size(first))
    if seen.errors:
        return _parted(seen, launch)
    if seen.silent_s and seen.stacks and silent:
        return _missing(silent[0], seen, launch)
    if seen.silent_s:
        text = f"no progress for {seen.silent_s:.0f} s, and no rank says why"
        return Outcome(status="timeout", error=text)
    return None


def _told_by_torchrun(seen: Evidence) -> frozenset[int]:
    """Ranks that SIGTERM ended because another had waited in vain.

    Had somebody ended one of them first, its peers would have lost the connection. torchrun lists those that it
    ends itself too (torch/distributed/elastic/multiprocessing/api.py, SubprocessContext._poll). Where NCCL's watchdog
    told it, it also kills what does not end: had that been killed first, nobody would have waited so long.
    """
    first = next(iter(seen.errors.values()), None)
    if first is None or not WAITED.search(first["message"]):
        return frozenset()
    by_torchrun = TOLD + KILLED if first["type"] == watchdog.TYPE else TOLD
    return frozenset(rank for rank, code in seen.exits.items() if code in by_torchrun)


def last_words(launch: LaunchFolder, code: int) -> str:
    """What ended torchrun itself; else the last line that looks like an error in what it printed.

    A launcher tells the other torchruns to end when one fails: what that one said comes before the signal.
    """
    texts = [[line.strip() for line in text.splitlines() if line.strip()] for text in printed(launch)]
    errors = [[line for line in lines if ERROR.search(line) and not NO_CAUSE.search(line)] for lines in texts]
    said = next((lines[-1] for lines in errors if lines), None)
    name = _ended_by(code)
    if name and not (said and code in TOLD):
        return f"torchrun was ended by {name} ({launch.path})"
    said = said or next((lines[-1] for lines in texts if lines), None)
    return f"{said[:300]} ({launch.path})" if said else f"the launch ended with status {code}"


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
    name = _ended_by(code)
    how = f"was ended by {name}" if name else f"ended with status {code} without a word"
    if name == signal.SIGKILL.name:
        how += " (by a person, or by a system that is out of memory: see its log)"
    stage = f", in {first['stage']}" if first else ""
    text = f"rank {rank} {how}{stage}; log: {launch.log(rank)}"
    return Outcome(status="failed", error=text, rank=rank, world_size=_size(first))


def _ended_by(code: int) -> str | None:
    """The signal that ended a process, from its status as Python or a shell counts it."""
    number = -code if code < 0 else code - 128
    return signal.Signals(number).name if number in set(signal.Signals) else None


def _hung(rank: int, seen: Evidence, launch: LaunchFolder) -> Outcome:
    stack = seen.stacks.get(rank, {})
    first = next((error for other, error in seen.errors.items() if other != rank), {})
    stage = stack.get("stage") or first.get("stage") or ""
    words = [f"rank {rank} hung" + (" (stopped by a signal)" if rank in seen.stopped else "")]
    words.append(f"in {stage}" if stage else "")
    frames = stack.get("stack", [])
    if frames:
        caller = next((frame for frame in frames if not LIBRARY.search(frame)), frames[0])
        words.append(f"at {frames[0]}" + (f", from {caller}" if caller != frames[0] else ""))
    text = " ".join(word for word in words if word)
    entered = stack.get("collective")
    text += f"; the last collective it entered: {entered}" if entered else ""
    if first.get("collective"):
        text += f"; rank {first['rank']} waited in {first['collective']}"
    where = f"stack: {launch.stack(rank)}" if stack else f"it left no stack; log: {launch.log(rank)}"
    size = _size(stack) or _size(first)
    return Outcome(status="timeout", error=f"{text}; {where}", rank=rank, world_size=size)


def _vanished(rank: int, seen: Evidence, launch: LaunchFolder) -> Outcome:
    """It was seen to be gone while the others went on."""
    first = next(iter([*seen.errors.values(), *seen.stacks.values()]), {})
    text = f"rank {rank} ended without a word"
    text += f"; rank {first['rank']} waited for it in {first['stage']}" if first else ""
    text += f"; log: {launch.log(rank)}"
    return Outcome(status="failed", error=text, rank=rank, world_size=_size(first))


def _missing(rank: int, seen: Evidence, launch: LaunchFolder) -> Outcome:
    """The others wait for a rank that is not there to be told anything."""
    stack = next(iter(seen.stacks.values()))
    text = (
        f"no progress for {seen.silent_s:.0f} s, in {stack['stage']}; rank {rank} gives no sign (it ended without a "
        f"word, or is stopped on another machine), and rank {stack['rank']} waits for it; log: {launch.log(rank)}"
    )
    return Outcome(status="timeout", error=text, rank=rank, world_size=_size(stack))


def _told(error: Record, launch: LaunchFolder) -> str:
    place = f" ({error['file']}:{error['line']})" if error.get("file") else ""
    return (
        f"{error['type']}: {error['message']}{place}, in {error['stage']}; log: {launch.log(error['rank'])}"
    )


def _secondhand(error: Record) -> bool:
    said = error["message"]
    of_its_own = error["type"] == OF_ITS_OWN or OF_THE_DEVICE.search(said)
    return error["type"] == "Aborted" or bool(SECONDHAND.search(said) and not of_its_own)


def _waits(stack: Record) -> bool:
    return any(WAITING in frame for frame in stack.get("stack", ()))


def _size(record: Record) -> int | None:
    size = str(record.get("stage", "")).partition("world size ")[2].partition(",")[0]
    return int(size) if size.isdigit() else None
