"""A run's own documents: its plan, its composed config, how its trials stand, what is left; and the lock on its folder.

A launch measures its trials interleaved, so they finish together or not at all. A crash or a hang counts against the
trial in which it happened, or against all trials of the launch where that is not known. A trial that has ended
RESTARTS + 1 launches, or has hung HANGS times in the same way, is given up, and the others go on without it.

The kernel locks a file in the folder (flock), so the lock ends with the program that holds it, however that ends, and
never has to be removed by hand. On NFS it holds between machines too where the server keeps locks. A machine that dies
then keeps it until the server's lease runs out (NFSv4, about a minute and a half), or until the machine is up again
(NFSv3's lockd, where only removing the file by hand helps). On a file system without locks a line says so, and the
program goes on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaling.errors import InputError, while_reading
from scaling.plain import tell
from scaling.reading import YAML_BYTES_MAX, read_text
from scaling.records import files
from scaling.records.decode import read_head
from scaling.records.files import read_if_whole, read_json
from scaling.records.paths import RunFolder, find_run
from scaling.settings.cases import SCHEMA as LARGEST_SCHEMA
from scaling.settings.cases import Largest
from scaling.settings.plan import LEFT_OUT, SETTLED, Ended, Plan
from scaling.settings.plan import SCHEMA as PLAN_SCHEMA
from scaling.settings.topology import Topology

STATUS_SCHEMA = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatus:
    """One launch: what it was to measure, how it ended, and what it finished."""

    index: int
    world_sizes: tuple[int, ...]
    state: str
    """running, done, failed, timeout, interrupted, or lost where no program saw its end."""
    finished: tuple[int, ...] = ()
    """World sizes whose records are whole, however the launch ended."""
    too_large: tuple[int, ...] = ()
    """World sizes that did not fit into some rank's memory."""
    left_out: tuple[int, ...] = ()
    """World sizes for which the budget left no time."""
    duration_s: float = 0.0
    error: str | None = None
    rank: int | None = None
    world_size: int | None = None
    """The trial in which it failed, where that is known."""
    stage: str | None = None
    """Where it hung, if it did. Launches that hang with the same rank in the same stage hang for the same reason."""

    def blames(self, world_size: int) -> bool:
        """Whether this launch's failure counts against the trial of that world size."""
        if self.state not in ("failed", "timeout") or world_size not in self.world_sizes:
            return False
        return world_size == self.world_size or self.world_size not in self.world_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStatus(Ended):
    """How one trial stands: planned running done failed oom timeout lost interrupted left_out, with the last error."""

    world_size: int
    launches: tuple[int, ...] = ()
    """Those that measured it whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """status.json: how the run, each of its launches and each of its trials stand."""

    schema: int
    state: str
    started: str
    duration_s: float
    launches: tuple[LaunchStatus, ...]
    trials: tuple[TrialStatus, ...]


RESTARTS = 2
"""How often a failing trial is launched again, each time the run is started or resumed."""
HANGS = 2
"""A trial that hung as often with the same rank in the same stage is not launched again: each try costs minutes."""


def left(plan: Plan, launches: Sequence[LaunchStatus], since: int = 0) -> tuple[int, ...]:
    """World sizes that the next launch is to measure; none when the run is over.

    A trial is left until `repeats` launches have finished it, unless it did not fit into memory or was given up.
    Failures count from launch `since` on, so that a resumed run tries again.
    """
    return tuple(
        t.world_size
        for t in plan.trials
        if plan.content.holds(t.world_size)
        and not any(t.world_size in launch.left_out for launch in launches)
        and _finished(t.world_size, launches) < plan.spec.repeats
        and not any(t.world_size in launch.too_large for launch in launches)
        and not _given_up([launch for launch in launches[since:] if launch.blames(t.world_size)])
    )


def status_of(plan: Plan, launches: Sequence[LaunchStatus]) -> Status:
    """All of status.json. A run is done when all is that was to be measured, else it is as the first other trial."""
    trials = tuple(_trial(t.world_size, plan, launches) for t in plan.trials)
    state = next((t.status for t in trials if t.status not in SETTLED), "done")
    if launches and launches[-1].state in ("running", "interrupted"):
        state = launches[-1].state
    return Status(
        schema=STATUS_SCHEMA,
        state=state,
        started=plan.created,
        duration_s=round(sum(launch.duration_s for launch in launches), 1),
        launches=tuple(launches),
        trials=trials,
    )


def _given_up(blaming: Sequence[LaunchStatus]) -> bool:
    """Whether a trial is not tried again after the launches that it ended."""
    hung = Counter((launch.rank, launch.stage) for launch in blaming if launch.stage is not None)
    return len(blaming) > RESTARTS or max(hung.values(), default=0) >= HANGS


def _finished(world_size: int, launches: Sequence[LaunchStatus]) -> int:
    return sum(world_size in launch.finished for launch in launches)


def _trial(world_size: int, plan: Plan, launches: Sequence[LaunchStatus]) -> TrialStatus:
    def stands(status: str, error: str | None = None, rank: int | None = None) -> TrialStatus:
        whole = tuple(launch.index for launch in launches if world_size in launch.finished)
        return TrialStatus(world_size=world_size, status=status, error=error, rank=rank, launches=whole)

    left_out = any(world_size in launch.left_out for launch in launches)
    if left_out or not plan.content.holds(world_size):
        return stands(LEFT_OUT)
    tried = [launch for launch in launches if world_size in launch.world_sizes]
    if not tried:
        return stands("planned")
    if any(world_size in launch.too_large for launch in tried):
        return stands("oom", "a rank ran out of memory in its first step")
    if _finished(world_size, launches) >= plan.spec.repeats:
        return stands("done")
    last = tried[-1]
    if last.state == "running" or last.blames(world_size):
        return stands(last.state, last.error, last.rank)
    if last.state in _ENDED:
        return stands("lost", f"cut off when world size {last.world_size} {_ENDED[last.state]}")
    return stands("interrupted", last.error)


_ENDED = {"failed": "failed", "timeout": "hung"}


def in_words(launch: LaunchStatus, following: tuple[int, ...]) -> str:
    """One line about a launch that did not finish, and about what follows."""
    sizes = ", ".join(map(str, following))
    what = f"launch {launch.index} {_ENDED.get(launch.state, launch.state)}: {launch.error}"
    if not following:
        return f"{what}; its records were whole by then"
    return f"{what}; launch {launch.index + 1} measures what is left, world size {sizes}"


@contextlib.contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Hold a run folder; InputError where another program holds it, or where nothing can be written there."""
    try:
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise InputError(
            f"{folder.path}: cannot be written to ({error.strerror}); make it writable"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            os.close(descriptor)
            raise InputError(
                f"{folder.path}: another `scaling run` is working in it; wait for it to end, or name another folder "
                f"(if its machine died: rm {folder.lock})"
            ) from error
        lockless = f"its file system keeps no locks ({error.strerror})"
        tell(f"{folder.path}: {lockless}; start no other program in this folder")
    try:
        yield
    finally:
        os.close(descriptor)


STARTED_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLaunch(Ended):
    """One launch: done, failed, timeout or interrupted."""

    index: int
    world_size: int
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """All launches of one script."""

    schema: int
    id: str
    created: str
    version: str
    topology: Topology
    script: tuple[str, ...]
    """The script and its arguments."""
    probe: bool
    """Whether the script opens a Probe; without, one is opened for it."""
    world_sizes: tuple[int, ...]
    repeats: int
    launches: tuple[ScriptLaunch, ...] = ()


def read_started(folder: RunFolder) -> Started | None:
    """launch.json; None where it is missing or damaged."""
    return read_if_whole(folder.started, Started, STARTED_SCHEMA)


def read_plan(folder: RunFolder) -> Plan:
    """The plan of a run, or the one that an own loop's records bring along; InputError where there is none."""
    if not find_run(folder.path).plan.is_file():
        plan = own_plan(folder)
        if plan is None:
            raise InputError(
                f"{folder.path}: there is no plan.json, and no rank file that begins with a plan; "
                "name a folder that `scaling run` or a Probe made"
            )
        return plan
    return read_json(folder.plan, Plan, PLAN_SCHEMA)


def own_plan(folder: RunFolder) -> Plan | None:
    """The plan in the heads of an own loop's rank files, from its latest launch; None where none has one."""
    for launch in reversed(folder.launches()):
        for path in sorted(launch.path.glob("rank-*.jsonl")):
            with contextlib.suppress(OSError, ValueError, TypeError):
                head = read_head(path)
                if head.plan is not None and head.plan.get("schema") == PLAN_SCHEMA:
                    return files.decode(Plan, head.plan)
    return None


def read_config(folder: RunFolder) -> str:
    """The text of a run's config.yaml; InputError where there is none, as beside traces and own loops."""
    if not folder.config.exists() and folder.path.exists():
        raise InputError(
            f"{folder.path}: the records of your own loop (a Probe) or of traces, which have no settings to change; "
            "name a run that `scaling run` made (it has a config.yaml)"
        )
    with while_reading(folder.config, "overrides need it"):
        return read_text(folder.config, YAML_BYTES_MAX)


def read_status(folder: RunFolder) -> Status | None:
    """status.json; None where it is missing or damaged."""
    return read_if_whole(folder.status, Status, STATUS_SCHEMA)


def read_largest(folder: RunFolder) -> Largest | None:
    """The result so far; None without `batch=max`, and before the search."""
    return read_if_whole(folder.largest, Largest, LARGEST_SCHEMA)
