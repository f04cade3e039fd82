"""Launch a script of the user's, follow it to its end, and say why it failed.

A script writes no progress that we know, so it may take until a limit. What it leaves behind ends with it
(launch/reaper.py).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaling.launchers.failure.cause import NO_CAUSE, SECONDHAND, ended_by, last_error
from scaling.launchers.failure.evidence import printed
from scaling.launchers.jobs import launcher_of
from scaling.launchers.launcher import Command, LaunchRequest, end, signals_deferred, start
from scaling.records.files import remove
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.settings.plan import Ended, Plan

RUN_DIR = "SCALING_RUN_DIR"
"""Where a Probe in the script writes, whatever the script says."""
PROBE = "SCALING_PROBE"
"""0 would turn the Probe off."""
POLL_S = 0.1
TAIL = 10
"""Lines of a failed rank that are shown."""

_OF_TORCHRUN = re.compile(r"^[WEI]\d{4} \d\d:\d\d:\d\d")
_ROOT = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s*: (\d+) .*?exitcode\s*: (-?\d{1,9})\b", re.DOTALL
)
_OF_RANK = re.compile(r"^\[rank(\d+)\]:\s?(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnd(Ended):
    """How a launch ended, with the last lines of the rank that failed."""

    lines: tuple[str, ...] = ()


def command_of(
    plan: Plan, folder: RunFolder, logs: LaunchFolder, world_size: int, program: Sequence[str]
) -> Command:
    """The command of one launch of the script at a world size."""
    command = launcher_of(plan).command(
        LaunchRequest(
            plan=plan, folder=folder, launch=logs, world_sizes=(world_size,), program=tuple(program)
        )
    )
    variables = {
        RUN_DIR: str(folder.at_size(world_size).path.absolute()),
        PROBE: "1",
        "OMP_NUM_THREADS": str(plan.spec.threads),
    }
    return replace(command, env={**variables, **command.env})


def run_script(command: Command, logs: LaunchFolder, limit_s: float) -> ScriptEnd:
    """Run one launch to its end, or to `limit_s`. Ctrl-C ends it in order; no process is left in any case."""
    process, late = None, False
    try:
        with signals_deferred():
            process = start(command, logs)
        begin = time.monotonic()
        while process.poll() is None and not late:
            time.sleep(POLL_S)
            late = time.monotonic() - begin > limit_s
    except KeyboardInterrupt:
        return ScriptEnd(status="interrupted", error="interrupted")
    finally:
        if process is not None:
            end(process)
        logs.fabric.unlink(missing_ok=True)  # it has the script's arguments as they were given
        with contextlib.suppress(OSError):
            remove(logs.path, logs.torchrun.name)
    if late:
        return ScriptEnd(
            status="timeout", error=f"still running after {limit_s:g} s (--time-limit); it was ended"
        )
    if process.returncode == 0:
        return ScriptEnd(status="done")
    return why(logs, process.returncode, len(command.ranks))


def why(logs: LaunchFolder, code: int, ranks: int) -> ScriptEnd:
    """What ended a script: the exception of the rank that failed first, which is not about a lost peer.

    `ranks`: how many there are. A script may print of others, which do not count.
    """
    texts, numbers = printed(logs), set(map(str, range(ranks)))
    by_rank: dict[int, list[str]] = {}
    for line in (line for text in texts for line in text.splitlines()):
        if (match := _OF_RANK.match(line)) and match[1] in numbers:
            by_rank.setdefault(int(match[1]), []).append(match[2])
    told = (match for text in texts for match in _ROOT.finditer(text) if match[1] in numbers)
    root = next(told, None)
    first = [int(root[1])] if root else []
    failed = [rank for rank in dict.fromkeys([*first, *sorted(by_rank)]) if by_rank.get(rank)]
    first_hand = [rank for rank in failed if not SECONDHAND.search(by_rank[rank][-1])]
    rank = next(iter(first_hand or failed or first), None)
    error, lines = "", by_rank.get(rank, []) if rank is not None else []
    if not lines:
        lines = [line for text in texts for line in _before_torchrun(text)]
        name = ended_by(int(root[2])) if root and int(root[2]) < 0 else None
        error = f"rank {rank} was ended by {name}" if name else ""
    if not lines and not error:
        return ScriptEnd(status="failed", error=last_error(logs, code))
    return ScriptEnd(status="failed", error=error or lines[-1][:300], rank=rank, lines=tuple(lines[-TAIL:]))


def _before_torchrun(text: str) -> list[str]:
    """What the script printed: the lines before torchrun's own last words."""
    lines = []
    for line in text.splitlines():
        if _OF_TORCHRUN.match(line):
            if "failed (exitcode" in line:
                break
            continue
        if line.strip() and not NO_CAUSE.search(line):
            lines.append(line.rstrip())
    return lines
