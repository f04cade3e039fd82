"""What a launcher is: it says whether a plan can run here, which world sizes fit, and what to execute.

`local`, `emulated` and `slurm` implement it; `choose.launcher_of` picks one. `follow` runs the command of any of
them and ends it.

What a launcher is asked to start.
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
