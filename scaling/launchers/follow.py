"""Start a launch, follow it, and make sure that it ends."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling.launchers import slurm
from scaling.launchers.torchrun import Command
from scaling.spec import Measure
from scaling.store import LaunchFolder, write_json

POLL_S = 0.2
END_S = 8
"""From asking a launch to end to making it."""
LAUNCHER_LOG = "launcher.txt"
"""What the launcher itself printed: torchrun here, srun, or the emulated hosts' parent."""
START_S = 120
"""Start-up of torchrun and set-up of the model may take so long without a word."""

Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a launch ended: done, failed, timeout or interrupted, with the first error and its rank."""

    status: str
    error: str | None = None
    rank: int | None = None
    world_size: int | None = None


def follow(command: Command, launch: LaunchFolder, measure: Measure, progress: Progress) -> Outcome:
    """Run one launch to its end. Ctrl-C ends it in order; nothing is left running in any case."""
    if command.network is not None:
        write_json(launch.fabric, command.network)
    with (launch.path / LAUNCHER_LOG).open("ab") as log:
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.env},
            start_new_session=True,  # a Ctrl-C at the terminal reaches us only; we pass it on
            preexec_fn=_die_with_parent,  # noqa: PLW1509  # one prctl; this program has no threads by then
        )
        try:
            late = _wait(process, launch, measure, progress)
        except KeyboardInterrupt as stop:
            _end(process)
            why = slurm.interruption() if stop.args else "interrupted by Ctrl-C"
            return Outcome(status="interrupted", error=why)
        finally:
            _end(process)
    if late:
        error = first_error(launch) or {}
        return _failed(error, launch, status="timeout", text=f"no progress for {late:.0f} s")
    if process.returncode == 0:
        return Outcome(status="done")
    node = slurm.blamed(_text(launch.path / LAUNCHER_LOG))
    if node is not None:  # then what the ranks say is of lost connections
        return Outcome(status="failed", error=node)
    return _failed(
        first_error(launch) or {}, launch, status="failed", text=_last_words(launch, process.returncode)
    )


def first_error(launch: LaunchFolder) -> dict[str, Any] | None:
    """The error record of the rank that failed first; later ones mostly tell of lost connections."""
    records = []
    for path in sorted(launch.path.glob("error-*.json")):
        with contextlib.suppress(OSError, ValueError):
            records.append((path.stat().st_mtime_ns, json.loads(path.read_text(encoding="utf-8"))))
    if not records:
        return None
    records.sort(key=lambda item: (not item[1].get("first"), item[0]))
    return dict(records[0][1])


def describe(command: Command) -> str:
    """The commands of a launch as a person can run them, one a line."""
    lines = [_shell(command.env, command.argv)]
    if command.network is not None:
        lines += [f"#   {h['name']}: {_shell(h['env'], h['command'])}" for h in command.network["hosts"]]
    return "\n".join(lines) + "\n"


def _shell(env: dict[str, str], argv: Any) -> str:
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), shlex.join(argv)])


def _wait(
    process: subprocess.Popen[bytes], launch: LaunchFolder, measure: Measure, progress: Progress
) -> float:
    """Until the process ends (0) or has been silent for too long (how long, s)."""
    patience = START_S + 2 * measure.step_timeout_s
    heard, last = time.monotonic(), ""
    while process.poll() is None:
        time.sleep(POLL_S)
        with contextlib.suppress(OSError, ValueError):
            text = launch.progress.read_text(encoding="utf-8")
            if text != last:
                heard, last = time.monotonic(), text
                progress(json.loads(text))
        if time.monotonic() - heard > patience:
            return time.monotonic() - heard
    return 0.0


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


def _failed(error: dict[str, Any], launch: LaunchFolder, *, status: str, text: str) -> Outcome:
    if not error:
        return Outcome(status=status, error=text)
    where = f" ({error['file']}:{error['line']})" if error.get("file") else ""
    stage = str(error.get("stage", ""))
    size = stage.partition("world size ")[2].partition(",")[0]
    return Outcome(
        status=status,
        error=f"{error['type']}: {error['message']}{where}, in {stage}; log: {launch.log(error['rank'])}",
        rank=error["rank"],
        world_size=int(size) if size.isdigit() else None,
    )


def _last_words(launch: LaunchFolder, code: int) -> str:
    """The last line that looks like an error in what torchrun printed."""
    for path in [*sorted(launch.path.glob("torchrun-*.txt")), launch.path / LAUNCHER_LOG]:
        lines = [x.strip() for x in _text(path).splitlines() if x.strip()]
        errors = [x for x in lines if "Error" in x or "error" in x] or lines[-1:]
        if errors:
            return f"{errors[-1][:300]} ({path})"
    return f"the launch ended with status {code}"


def _text(path: Path) -> str:
    """A log, as far as it is there."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""
