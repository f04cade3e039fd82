"""Start a launch, listen to what rank 0 reports and whether the ranks go on, and make sure that it ends.

Also launch a script of the user's. It writes no progress that we know, so it may take until a limit. What it leaves
behind ends with it (launch/reaper.py).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scaling.launchers.failure import evidence
from scaling.launchers.failure.cause import NO_CAUSE, SECONDHAND, LaunchOutcome, cause, ended_by, last_error
from scaling.launchers.failure.evidence import gather, printed
from scaling.launchers.jobs import launcher_of
from scaling.launchers.launcher import Command, LaunchRequest, Progress, end, signals_deferred, start
from scaling.launchers.slurm.queue import interruption
from scaling.reading import log_text, read_text
from scaling.records.files import remove
from scaling.records.launch import Pulse, has_beaten, has_moved, has_started, read_pulse
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.settings.plan import Ended, Plan
from scaling.settings.run import Measure
from scaling.settings.timeouts import Silence, patience_s

LOOK_S = 1.0
"""Between two looks at the pulses."""
STALE_S = 20.0
"""Pulses that are older say nothing about now: a sampler has died, or hangs with its driver."""
HOSTS_A_LOOK = 16
"""Pulses that are read in a look at most, so that thousands of hosts cost a file system no more than a few."""
SAY_S = 5.0
"""Silence that is worth a word."""


class Vigil:
    """Knows how long a launch has been silent, and how long it may be."""

    def __init__(
        self,
        launch: LaunchFolder,
        now: float,
        *,
        hosts: int,
        timeout_s: float,
        start_s: float,
        progress: Progress,
    ) -> None:
        self._launch, self._progress = launch, progress
        self._hosts, self._turn = hosts, 0
        self._timeout_s, self._start_s = timeout_s, start_s
        self._text = ""
        self._record: dict[str, Any] = {}
        self._pulses: dict[int, Pulse] = {}
        self._blind = False  # whether some rank's beats could not be read in the last look
        self._heard = self._looked = self._moved = now
        self._fresh = float("-inf")

    @property
    def begun(self) -> bool:
        """Whether rank 0 has reported a stage."""
        return bool(self._record)

    def listen(self, now: float) -> None:
        """Take in what is new, and pass it on."""
        with contextlib.suppress(OSError, ValueError):
            text = read_text(self._launch.progress)
            if text != self._text:
                self._record, self._text = json.loads(text), text
                self._heard = now
                self._progress(self._record)
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        self._feel(now)
        silent_s = self.silent_s(now)
        if silent_s > SAY_S:
            moved = None if self._stale(now) else now - self._moved < STALE_S
            waited = {"silent_s": silent_s, "patience_s": self.patience_s(now), "moved": moved}
            self._progress({"stage": "start", **self._record, **waited})

    def excuse(self, gap_s: float) -> None:
        """Leave out time in which this process did not run, and maybe no rank did."""
        self._heard += gap_s
        self._looked += gap_s
        self._moved += gap_s
        self._fresh += gap_s

    def silent_s(self, now: float) -> float:
        """How long there has been no progress."""
        return now - self._heard

    def patience_s(self, now: float) -> float:
        """How long there may be none."""
        seen = Silence(
            begun=self.begun,
            step_s=self._record.get("step_s"),
            expected_s=self._record.get("expected_s"),
            moved_s=None if self._stale(now) else max(0.0, self._moved - self._heard),
        )
        return patience_s(seen, timeout_s=self._timeout_s, start_s=self._start_s)

    def _feel(self, now: float) -> None:
        """Look at hosts in turn until one has beaten; the next look begins with that one."""
        self._blind = False
        for _ in range(min(self._hosts, HOSTS_A_LOOK)):
            host = self._turn % self._hosts
            before, pulse = self._pulses.get(host, {}), read_pulse(self._launch, host)
            self._blind = self._blind or any(rank.beats is None for rank in pulse.values())
            if pulse != before:
                self._pulses[host], self._fresh = pulse, now
            if has_moved(before, pulse):
                self._moved = now
            beaten = has_beaten(before, pulse)
            if beaten or has_started(before, pulse):
                self._heard = now
            if beaten:
                return
            self._turn += 1

    def _stale(self, now: float) -> bool:
        return now - self._fresh > STALE_S or self._blind


POLL_S = 0.2
MISSING_S = 40
"""How long a rank may be gone while others go on. torchrun ends the others within 30 s when it notices."""
SUSPENDED_S = 5.0
"""A pause between two looks that takes longer is of a job that was suspended."""
CALL_S = 1.0
"""Between two looks at the list of processes."""
LINGER_S = 4
"""How long the other ranks may take to end after one failed; they look for a failure every 2 s."""


def follow(
    command: Command,
    launch: LaunchFolder,
    measure: Measure,
    progress: Progress,
    meanwhile: Callable[[], object] = lambda: None,
) -> LaunchOutcome:
    """Run one launch to its end. Ctrl-C ends it in order; no process is left running in any case.

    `meanwhile` is called while the ranks start, when nothing is measured yet.
    """
    process = None
    try:
        with signals_deferred():
            process = start(command, launch)
        meanwhile()
        vigil = Vigil(
            launch,
            time.monotonic(),
            hosts=command.hosts,
            timeout_s=measure.step_timeout_s,
            start_s=max(measure.start_timeout_s, command.start_s),
            progress=progress,
        )
        silent_s, missing = _wait(process, launch, vigil)
        last_line = evidence.last_line(launch)  # it prints more once it is told to end
        alone = process.poll()
        left = evidence.end(launch) if alone is None else []
    except KeyboardInterrupt as stop:
        if process is not None:
            end(process)  # first, because asking Slurm for the reason can take a minute
        return LaunchOutcome(status="interrupted", error=interruption(stop))
    finally:
        if process is not None:
            end(process)
        _remove_scratch(launch)
    if process.returncode == 0 and not left:
        return LaunchOutcome(status="done")
    if alone == -signal.SIGKILL:  # the ranks that it took along only report lost connections
        return LaunchOutcome(status="failed", error=last_error(launch, alone))
    node = command.blamed(log_text(launch.launcher_log)) if command.blamed else None
    if node is not None:  # the ranks then only report lost connections
        return LaunchOutcome(status="failed", error=node)
    ranks = dict(enumerate(command.ranks))
    told = frozenset(ranks.get(worker.rank, worker.rank) for worker in left)
    stopped = frozenset(ranks.get(worker.rank, worker.rank) for worker in left if worker.stopped)
    gone = frozenset(ranks.get(rank, rank) for rank in missing)
    seen = replace(
        gather(launch, ranks),
        told=told,
        stopped=stopped,
        missing=gone,
        silent_s=silent_s,
        last_line=last_line,
    )
    return cause(seen, launch) or LaunchOutcome(status="failed", error=last_error(launch, process.returncode))


def _remove_scratch(launch: LaunchFolder) -> None:
    """Remove the launch's scratch folder, and what ranks that were killed left in the temporary folder of this host."""
    for link in launch.torchrun.glob(launch.scratch("*").name):
        with contextlib.suppress(OSError):
            left = link.readlink()
            if left.name.startswith("pymp-") and left.parent == Path(tempfile.gettempdir()):
                shutil.rmtree(left, ignore_errors=True)
    with contextlib.suppress(OSError):
        remove(launch.path, launch.torchrun.name)


def _wait(
    process: subprocess.Popen[bytes], launch: LaunchFolder, vigil: Vigil
) -> tuple[float, frozenset[int]]:
    """Wait until the process ends, a rank failed and the others linger, a rank is missing, or progress stops.

    Returns how long there was no progress (s; 0 in all other cases) and the missing ranks, as torchrun numbers them.
    """
    complete = called = time.monotonic()
    failed, roll = float("inf"), evidence.Roll(launch)
    while process.poll() is None:
        asleep = time.monotonic()
        time.sleep(POLL_S)
        now = time.monotonic()
        if now - asleep > SUSPENDED_S:  # the clock goes on, and the ranks could not
            vigil.excuse(now - asleep)
            complete, failed = complete + now - asleep, failed + now - asleep
        # Until rank 0's first record: all ranks are there then, and measuring begins.
        if not vigil.begun and now - called > CALL_S:
            roll.call()
            called = now
        vigil.listen(now)
        if failed == float("inf") and launch.failed.exists():
            failed = now
        if now - failed > LINGER_S:
            return 0.0, frozenset()
        missing = roll.missing()
        complete = complete if missing else now
        if now - complete > MISSING_S:
            roll.call()  # the process that was noted may have been a child of the rank
            missing = roll.missing()
            if missing:
                return 0.0, missing
            complete = now
        if vigil.silent_s(now) > vigil.patience_s(now):
            return vigil.silent_s(now), missing
    return 0.0, frozenset()


RUN_DIR = "SCALING_RUN_DIR"
"""Where a Probe in the script writes, whatever the script says."""
PROBE = "SCALING_PROBE"
"""0 would turn the Probe off."""
SCRIPT_POLL_S = 0.1
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
    request = LaunchRequest(
        plan=plan, folder=folder, launch=logs, world_sizes=(world_size,), program=tuple(program)
    )
    command = launcher_of(plan).command(request)
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
            time.sleep(SCRIPT_POLL_S)
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
        error = f"still running after {limit_s:g} s (--time-limit); it was ended"
        return ScriptEnd(status="timeout", error=error)
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
