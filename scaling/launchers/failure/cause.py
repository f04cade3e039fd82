"""Why a launch failed: the cause, separated from what followed from it.

When one rank fails, its peers fail after it, because they lose the connection or time out. So
the cause is the first of: an exception about something else; a rank that was killed; a rank that
hung; a rank that ended without an error message; a lost connection.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from scaling.launchers.failure.evidence import WATCHDOG, LaunchEvidence, Record, printed
from scaling.reading import as_number
from scaling.records.paths import LaunchFolder
from scaling.settings.plan import Ended

SECONDHAND = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|timed? ?out|timeout|socket|"
    r"no route to host|remote process|key not found|store.*(fail|lost)|communicator was aborted",
    re.IGNORECASE,
)
"""Errors of peers when a rank or a link is gone."""
OF_THE_DEVICE = re.compile(r"CUDA error")
"""Always a cause, also where it says that a kernel timed out."""
OF_ITS_OWN = "NoBatchError"
"""Raised when a rank's own input fails (scaling/worker/data/feed.py): always a cause, whatever its text."""
WAITED = re.compile(r"timed? ?out|timeout", re.IGNORECASE)
LIBRARY = re.compile(r"/torch/|/lib/python3")
"""Frames of libraries; the frame that called them says more."""
ERROR = re.compile(r"Error|error")
FULL = "No space left on device"
SMALL_SHM = (
    "the shared memory (/dev/shm) is full or too small, and the data loader's workers share batches there: give the "
    "container more (--shm-size, --ipc=host), or set data.workers=0"
)
NO_CAUSE = re.compile(r"SIGTERM|SignalException|signal: 15|death signal|error_file|elastic/errors")
"""Lines of a torchrun that was told to end, and its hints at other files."""
WAITING = "/scaling/worker/session/control.py"
"""A rank with this file in its stack waits for its turn or for other ranks."""

_ROUND = re.compile(r",? round \d+")

TOLD = (-signal.SIGTERM, 128 + signal.SIGTERM)
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome(Ended):
    """How a launch ended: done, failed, timeout or interrupted, with the cause, its rank and its trial."""

    world_size: int | None = None
    out_of_memory: bool = False
    stage: str | None = None
    """Where it hung, without the number of the round; None where it did not, or where that is not known."""


def cause(seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome | None:
    """The cause; None where the ranks left no evidence."""
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
    hung = sorted(seen.stopped)  # also where it went on later and then lost its peers
    at_work = [r for r, stack in seen.stacks.items() if waited and r not in seen.errors and not _waits(stack)]
    if not seen.errors and not hung and len(at_work) > 1:  # most of them wait in a collective
        at_work = _behind(at_work, seen.stacks)
        if not at_work:
            return _stuck(seen, launch)
    hung += at_work
    hung += [r for r in sorted(told) if waited and r not in seen.errors and r not in seen.stacks]
    if hung:
        return _hung(hung[0], seen, launch)
    if seen.errors and silent:
        first = next(iter(seen.errors.values()))
        text = f"rank {silent[0]} ended without an error message; rank {first['rank']} then met {_told(first, launch)}"
        return LaunchOutcome(status="failed", error=text, rank=silent[0], world_size=_size(first))
    if seen.errors:
        return _parted(seen, launch)
    if seen.silent_s and seen.stacks and silent:
        return _missing(silent[0], seen, launch)
    if seen.silent_s and len(seen.stacks) > 1:
        return _unheard(seen, launch)
    if seen.silent_s:
        text = f"no progress for {seen.silent_s:.0f} s, and no rank says why"
        text += f"; the launcher's last words: {seen.last_line[:200]}" if seen.last_line else ""
        return LaunchOutcome(status="timeout", error=text)
    return None


def _behind(ranks: list[int], stacks: Mapping[int, Record]) -> list[int]:
    """Those of `ranks` that have entered fewer collectives of some group than another rank of it."""
    most: dict[str, int] = {}
    for stack in stacks.values():
        for group, count in stack.get("entered", {}).items():
            most[group] = max(most.get(group, 0), count)
    return [r for r in ranks if any(n < most[g] for g, n in stacks[r].get("entered", {}).items())]


def _told_by_torchrun(seen: LaunchEvidence) -> frozenset[int]:
    """Ranks that torchrun ended because another rank had timed out.

    If one of them had been ended first, its peers would have lost the connection instead. torchrun also lists the
    ranks that it ends itself (torch/distributed/elastic/multiprocessing/api.py, SubprocessContext._poll). After NCCL's
    watchdog it kills ranks that do not end: if one had been killed first, no rank would have waited that long.
    """
    first = next(iter(seen.errors.values()), None)
    if first is None or not WAITED.search(first["message"]):
        return frozenset()
    by_torchrun = TOLD + KILLED if first["type"] == WATCHDOG else TOLD
    return frozenset(rank for rank, code in seen.exits.items() if code in by_torchrun)


def last_error(launch: LaunchFolder, code: int) -> str:
    """The signal that ended torchrun; else the last line of its output that looks like an error.

    When one torchrun fails, the launcher tells the others to end, so the first one's errors count before a signal.
    """
    texts = [[line.strip() for line in text.splitlines() if line.strip()] for text in printed(launch)]
    errors = [[line for line in lines if ERROR.search(line) and not NO_CAUSE.search(line)] for lines in texts]
    last_line = next((lines[-1] for lines in errors if lines), None)
    name = ended_by(code)
    if name and not (last_line and code in TOLD):
        return f"torchrun was ended by {name} ({launch.path})"
    last_line = last_line or next((lines[-1] for lines in texts if lines), None)
    return f"{last_line[:300]} ({launch.path})" if last_line else f"the launch ended with status {code}"


def _raised(error: Record, launch: LaunchFolder) -> LaunchOutcome:
    waited = _secondhand(error) and WAITED.search(error["message"])
    return LaunchOutcome(
        error=_told(error, launch),
        status="timeout" if waited else "failed",
        rank=error["rank"],
        world_size=_size(error),
        out_of_memory=bool(error.get("out_of_memory")),
        stage=_stage(error) if waited else None,
    )


def _parted(seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
    """Every rank only lost connections: the cause lies between the ranks."""
    first = _raised(next(iter(seen.errors.values())), launch)
    if len(seen.errors) < 2:
        return first
    ranks = ", ".join(map(str, sorted(seen.errors)))
    text = f"ranks {ranks} lost each other, as when a link is cut: rank {first.rank}: {first.error}"
    return replace(first, error=text)


def _killed(rank: int, seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
    code, first = seen.exits[rank], next(iter([*seen.errors.values(), *seen.stacks.values()]), {})
    name = ended_by(code)
    how = f"was ended by {name}" if name else f"ended with status {code} and no error message"
    if name == signal.SIGKILL.name:
        how += " (by a person, or by a system that is out of memory: see its log)"
    stage = f", in {first['stage']}" if first else ""
    text = f"rank {rank} {how}{stage}; log: {launch.log(rank)}"
    return LaunchOutcome(status="failed", error=text, rank=rank, world_size=_size(first))


def ended_by(code: int) -> str | None:
    """The signal that ended a process, from its status as Python or a shell counts it."""
    number = -code if code < 0 else code - 128
    return signal.Signals(number).name if number in set(signal.Signals) else None


def _hung(rank: int, seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
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
    stage = _stage(stack) or _stage(first)
    return LaunchOutcome(status="timeout", error=f"{text}; {where}", rank=rank, world_size=size, stage=stage)


def _stuck(seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
    """Ranks that wait for each other, each in its last collective, or that all hang alike."""
    rank, stack = next((r, s) for r, s in seen.stacks.items() if not _waits(s))
    ranks = ", ".join(str(r) for r, s in sorted(seen.stacks.items()) if not _waits(s))
    text = (
        f"ranks {ranks} hung in {stack['stage']}, and none is behind the others, as when a link is cut; the last "
        f"collective that rank {rank} entered: {stack.get('collective')}; stack: {launch.stack(rank)}"
    )
    return LaunchOutcome(status="timeout", error=text, world_size=_size(stack), stage=_stage(stack))


def _vanished(rank: int, seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
    """The rank ended while the others went on."""
    first = next(iter([*seen.errors.values(), *seen.stacks.values()]), {})
    text = f"rank {rank} ended without an error message"
    text += f"; rank {first['rank']} waited for it in {first['stage']}" if first else ""
    text += f"; log: {launch.log(rank)}"
    return LaunchOutcome(status="failed", error=text, rank=rank, world_size=_size(first))


def _missing(rank: int, seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
    """The others wait for a rank that does not answer."""
    stack = next(iter(seen.stacks.values()))
    text = (
        f"no progress for {seen.silent_s:.0f} s, in {stack['stage']}; rank {rank} does not answer (it ended without "
        f"an error message, or is stopped on another machine), and rank {stack['rank']} waits for it; "
        f"log: {launch.log(rank)}"
    )
    return LaunchOutcome(
        status="timeout", error=text, rank=rank, world_size=_size(stack), stage=_stage(stack)
    )


def _unheard(seen: LaunchEvidence, launch: LaunchFolder) -> LaunchOutcome:
    """Every rank waits for what another one has to say: the cause lies between the ranks."""
    stack = next(iter(seen.stacks.values()))
    ranks = ", ".join(map(str, sorted(seen.stacks)))
    text = (
        f"ranks {ranks} lost each other, as when a link is cut: no progress for {seen.silent_s:.0f} s, and each waits "
        f"for another's answer, rank {stack['rank']} in {stack['stage']}; stack: {launch.stack(stack['rank'])}"
    )
    return LaunchOutcome(status="timeout", error=text, world_size=_size(stack), stage=_stage(stack))


def _told(error: Record, launch: LaunchFolder) -> str:
    place = f" ({error['file']}:{error['line']})" if error.get("file") else ""
    full = FULL in error["message"] and "/multiprocessing/" in str(error.get("file"))
    remedy = f"; {SMALL_SHM}" if full else ""
    where = f"in {error['stage']}{remedy}; log: {launch.log(error['rank'])}"
    return f"{error['type']}: {error['message']}{place}, {where}"


def _secondhand(error: Record) -> bool:
    message = error["message"]
    of_its_own = error["type"] == OF_ITS_OWN or OF_THE_DEVICE.search(message)
    return error["type"] == "Aborted" or bool(SECONDHAND.search(message) and not of_its_own)


def _waits(stack: Record) -> bool:
    return any(WAITING in frame for frame in stack.get("stack", ()))


def _stage(record: Record) -> str | None:
    """The stage, the same in every round."""
    return _ROUND.sub("", str(record.get("stage", ""))) or None


def _size(record: Record) -> int | None:
    size = str(record.get("stage", "")).partition("world size ")[2].partition(",")[0]
    return as_number(size)
