"""Start a launch, follow it, and make sure that it ends."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from scaling.files import write_json
from scaling.launchers import slurm, workers
from scaling.launchers.cause import Outcome, cause, last_words
from scaling.launchers.evidence import gather
from scaling.launchers.torchrun import Command
from scaling.spec import Measure
from scaling.store import LaunchFolder

POLL_S = 0.2
END_S = 8
"""From asking a launch to end to making it."""
MISSING_S = 40
"""One rank ended, others go on: torchrun, where it knows, has ended them within 30 s."""
CALL_S = 1.0
LINGER_S = 4
"""Once a rank has failed, the others may take so long to end by themselves: they look for it every 2 s."""

Progress = Callable[[dict[str, Any]], None]


def follow(command: Command, launch: LaunchFolder, measure: Measure, progress: Progress) -> Outcome:
    """Run one launch to its end. Ctrl-C ends it in order; nothing is left running in any case."""
    if command.network is not None:
        write_json(launch.fabric, command.network)
    process = None
    try:
        with _held_back():
            process = _start(command, launch)
        silent_s, missing = _wait(process, launch, command.start_s + 2 * measure.step_timeout_s, progress)
        left = workers.end(launch) if process.poll() is None else []
    except KeyboardInterrupt as stop:
        if process is not None:
            _end(process)  # before Slurm is asked why, which can take a minute
        why = slurm.interruption() if stop.args else "interrupted by Ctrl-C"
        return Outcome(status="interrupted", error=why)
    finally:
        if process is not None:
            _end(process)
        shutil.rmtree(launch.torchrun, ignore_errors=True)
    if process.returncode == 0 and not left:
        return Outcome(status="done")
    node = slurm.blamed(_text(launch.launcher_log))
    if node is not None:  # then what the ranks say is of lost connections
        return Outcome(status="failed", error=node)
    ranks = dict(enumerate(command.ranks))
    told = frozenset(ranks.get(worker.rank, worker.rank) for worker in left)
    stopped = frozenset(ranks.get(worker.rank, worker.rank) for worker in left if worker.stopped)
    gone = frozenset(ranks.get(rank, rank) for rank in missing)
    seen = gather(launch, told=told, stopped=stopped, missing=gone, silent_s=silent_s, ranks=ranks)
    return cause(seen, launch) or Outcome(status="failed", error=last_words(launch, process.returncode))


def _start(command: Command, launch: LaunchFolder) -> subprocess.Popen[bytes]:
    with launch.launcher_log.open("ab") as log:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.env},
            start_new_session=True,  # a Ctrl-C at the terminal reaches us only; we pass it on
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # one prctl: the thread that draws progress does not matter
        )


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Ctrl-C and SIGTERM come after what is done here: a process that is being started is nobody's to end yet."""
    came: list[tuple[int, FrameType | None]] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    holding = True

    def pass_on(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        elif handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def take(number: int, frame: FrameType | None) -> None:
        if holding:
            came.append((number, frame))
        else:  # what the other signal's handler raises can leave this one in its place
            pass_on(number, frame)

    try:
        for number in before:
            signal.signal(number, take)
        yield
    finally:
        holding = False
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in came:
        pass_on(*one)


def describe(command: Command) -> str:
    """The commands of a launch as a person can run them, one a line."""
    lines = [_shell(command.env, command.argv)]
    if command.network is not None:
        lines += [f"#   {h['name']}: {_shell(h['env'], h['command'])}" for h in command.network["hosts"]]
    return "\n".join(lines) + "\n"


def _shell(env: dict[str, str], argv: Any) -> str:
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), shlex.join(argv)])


def _wait(
    process: subprocess.Popen[bytes], launch: LaunchFolder, usual_s: float, progress: Progress
) -> tuple[float, frozenset[int]]:
    """Until the process ends, ranks linger after another's failure, one is missing, or for too long nothing is heard.

    `usual_s`: so long to the first word, and later where a word does not say how long it may be quiet after it.
    How long nothing was heard (s; 0 in all other cases), and the ranks that are missing, as torchrun numbers them.
    """
    patience = usual_s
    heard, last, failed = time.monotonic(), "", float("inf")
    roll, called, complete = workers.Roll(launch), heard, heard
    while process.poll() is None:
        time.sleep(POLL_S)
        now = time.monotonic()
        if not last and now - called > CALL_S:  # with rank 0's first word all are there, and measuring begins
            roll.call()
            called = now
        with contextlib.suppress(OSError, ValueError):
            text = launch.progress.read_text(encoding="utf-8")
            if text != last:
                heard, last, record = now, text, json.loads(text)
                patience = record.get("patience_s", usual_s)
                progress(record)
        if failed == float("inf") and any(launch.path.glob("error-*.json")):
            failed = now
        if now - failed > LINGER_S:
            return 0.0, frozenset()
        missing = roll.missing()
        complete = complete if missing else now
        if now - complete > MISSING_S:
            roll.call()  # what was noted may have been a process of the rank's own
            missing = roll.missing()
            if missing:
                return 0.0, missing
            complete = now
        if now - heard > patience:
            return now - heard, missing
    return 0.0, frozenset()


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the whole session of the launch. A second Ctrl-C skips the waiting."""
    try:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            process.wait(timeout=END_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        pass
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _die_with_parent() -> None:
    """In the child: SIGTERM when the program that started it dies, even by SIGKILL (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _text(path: Path) -> str:
    """A log, as far as it is there."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
