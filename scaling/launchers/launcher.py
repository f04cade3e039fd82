"""What a launcher is: it says whether a plan can run here, which world sizes fit, and what to execute.

`local`, `emulated` and `slurm` implement it; `jobs.launcher_of` picks one. `follow` runs the command of any of them and
ends it. Here is also the process of a launch: how it is started, and how it and all that it started are ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.reading import open_to_write
from scaling.records.files import write_json
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.settings.cases import MEASURE
from scaling.settings.environment import without_secrets
from scaling.settings.plan import Plan
from scaling.settings.run import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One launch of a plan, with as many ranks as its largest world size needs."""

    plan: Plan
    folder: RunFolder
    launch: LaunchFolder
    world_sizes: tuple[int, ...]
    what: str = MEASURE
    """Measure, or search or prove the largest batch."""
    program: tuple[str, ...] = ()
    """What torchrun runs instead of our worker, such as a script and its arguments."""

    @property
    def spec(self) -> Spec:
        return self.plan.spec

    @property
    def ranks(self) -> int:
        return max(self.world_sizes)


Progress = Callable[[dict[str, Any]], None]
"""Takes the records that rank 0 writes while a launch runs, and `{"said": line}` for a line to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to execute for one launch."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """Added to the caller's environment."""
    network: dict[str, Any] | None = None
    """The hosts to emulate, written to the launch's folder before it starts."""
    hosts: int = 1
    """Hosts that it starts ranks on."""
    cwd: str | None = None
    """Its working directory; None: the caller's."""
    ranks: tuple[int, ...] = ()
    """Our rank of each process, in torchrun's order; empty where both count alike."""
    start_s: int = 0
    """How long a start may take here without any progress, if that is more than `measure.start_timeout_s`."""
    blamed: Callable[[str], str | None] | None = None
    """Finds, in what the command printed, the node that ended the launch."""


class Launcher(ABC):
    """A way to start the ranks of a plan."""

    def require(self, plan: Plan) -> None:  # noqa: B027  by default nothing is required
        """Raise InputError when the plan cannot run here."""

    def fitting(self, plan: Plan, sizes: tuple[int, ...]) -> tuple[tuple[int, ...], str | None]:  # noqa: ARG002
        """World sizes of `sizes` that a launch has room for now, and what is missing for the others."""
        return sizes, None

    @abstractmethod
    def command(self, request: LaunchRequest) -> Command:
        """The command of one launch."""


def describe(command: Command) -> str:
    """The commands of a launch as a person can run them, one a line; without what looks like a secret."""
    lines = [_shell(command.env, command.argv)]
    if command.network is not None:
        lines += [f"#   {h['name']}: {_shell(h['env'], h['command'])}" for h in command.network["hosts"]]
    return "\n".join(lines) + "\n"


def _shell(env: Mapping[str, str], argv: Sequence[str]) -> str:
    return " ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), shlex.join(without_secrets(argv))])


END_S, GONE_S = 12, 3
"""How long a launch may take to end after SIGTERM, and after a second one, before SIGKILL (launch/reaper.py)."""


def start(command: Command, launch: LaunchFolder) -> subprocess.Popen[bytes]:
    """Start a launch in a process group of its own, with its output in the launch's log."""
    if command.network is not None:
        write_json(launch.fabric, command.network, private=True)
    with open_to_write(launch.launcher_log, append=True) as log:
        return subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **command.env},
            cwd=command.cwd,
            start_new_session=True,  # so that Ctrl-C at the terminal reaches only this process, which ends the launch
            preexec_fn=die_with_parent,  # noqa: PLW1509  # safe beside other threads: it only calls prctl
        )


@contextlib.contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer SIGINT, SIGTERM and SIGHUP until the child has started."""
    came: list[int] = []
    with contextlib.ExitStack() as undo:  # goes on where a handler that is back already raises
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.signal(number, lambda number, _frame: came.append(number))
            undo.callback(signal.signal, number, before)
        yield
    for arrived in came:
        signal.raise_signal(arrived)


def end(process: subprocess.Popen[Any]) -> None:
    """Send SIGTERM, once more, then SIGKILL, to the launch's process group. A second Ctrl-C skips a wait."""
    try:
        for wait_s in (END_S, GONE_S):
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                if process.poll() is None:
                    _signal(process, signal.SIGTERM)
                    process.wait(timeout=wait_s)
    finally:
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[Any], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def die_with_parent() -> None:
    """In the child: SIGTERM when the program that started it dies, even by SIGKILL (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
