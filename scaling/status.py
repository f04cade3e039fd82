"""How a run and its trials stand, launch by launch, and what is left of it. Pure: no I/O.

A launch measures its trials interleaved, so they are finished together or not at all. A crash or a
hang is put down to the trial it happened in, or to all of the launch where it was nobody's; a trial
that ends RESTARTS + 1 launches is given up, and the others go on without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scaling.plan import Plan

SCHEMA = 2
"""1: no record of single launches."""
RESTARTS = 2
"""Launches after the first that a failing trial is given, each time the run is started or resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchStatus:
    """One launch: what it was to measure, how it ended, and what it finished."""

    index: int
    world_sizes: tuple[int, ...]
    state: str
    """running, done, failed, timeout, interrupted, or lost: nobody was there to see its end."""
    finished: tuple[int, ...] = ()
    """World sizes whose records are whole, whatever became of the launch."""
    too_large: tuple[int, ...] = ()
    """World sizes that did not fit into some rank's memory."""
    duration_s: float = 0.0
    error: str | None = None
    rank: int | None = None
    world_size: int | None = None
    """The trial in which it failed, where that is known."""

    def blames(self, world_size: int) -> bool:
        """Whether this launch's failure counts against a trial."""
        if self.state not in ("failed", "timeout") or world_size not in self.world_sizes:
            return False
        return world_size == self.world_size or self.world_size not in self.world_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStatus:
    """How one trial stands: planned running done failed oom timeout lost interrupted, with the last error."""

    world_size: int
    status: str
    error: str | None = None
    rank: int | None = None
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


def left(plan: Plan, launches: Sequence[LaunchStatus], since: int = 0) -> tuple[int, ...]:
    """World sizes that the next launch is to measure; none when the run is over.

    A trial is left until as many launches finished it as there are `repeats`, unless it did not fit
    into memory or was given up. Failures count from launch `since` on: a person who resumes a run
    asks for another try.
    """
    return tuple(
        t.world_size
        for t in plan.trials
        if _finished(t.world_size, launches) < plan.spec.repeats
        and not any(t.world_size in launch.too_large for launch in launches)
        and sum(launch.blames(t.world_size) for launch in launches[since:]) <= RESTARTS
    )


def status_of(plan: Plan, launches: Sequence[LaunchStatus]) -> Status:
    """The whole of status.json. The run is done when all trials are; else it stands as the first that is not."""
    trials = tuple(_trial(t.world_size, plan.spec.repeats, launches) for t in plan.trials)
    cut = bool(launches) and launches[-1].state in ("running", "interrupted")
    return Status(
        schema=SCHEMA,
        state=launches[-1].state if cut else next((t.status for t in trials if t.status != "done"), "done"),
        started=plan.created,
        duration_s=round(sum(launch.duration_s for launch in launches), 1),
        launches=tuple(launches),
        trials=trials,
    )


def _finished(world_size: int, launches: Sequence[LaunchStatus]) -> int:
    return sum(world_size in launch.finished for launch in launches)


def _trial(world_size: int, repeats: int, launches: Sequence[LaunchStatus]) -> TrialStatus:
    def stands(status: str, error: str | None = None, rank: int | None = None) -> TrialStatus:
        whole = tuple(launch.index for launch in launches if world_size in launch.finished)
        return TrialStatus(world_size=world_size, status=status, error=error, rank=rank, launches=whole)

    tried = [launch for launch in launches if world_size in launch.world_sizes]
    if not tried:
        return stands("planned")
    if any(world_size in launch.too_large for launch in tried):
        return stands("oom", "a rank ran out of memory in its first step")
    if _finished(world_size, launches) >= repeats:
        return stands("done")
    last = tried[-1]
    if last.state == "running" or last.blames(world_size):
        return stands(last.state, last.error, last.rank)
    if last.state in _ENDED:
        return stands("lost", f"cut off when world size {last.world_size} {_ENDED[last.state]}")
    return stands("interrupted", last.error)


_ENDED = {"failed": "failed", "timeout": "hung"}


def in_words(launch: LaunchStatus, following: tuple[int, ...]) -> str:
    """One line about a launch that did not come to its end, and what is done about it."""
    sizes = ", ".join(map(str, following))
    what = f"launch {launch.index} {_ENDED.get(launch.state, launch.state)}: {launch.error}"
    if not following:
        return f"{what}; its records were whole by then"
    return f"{what}; launch {launch.index + 1} measures what is left, world size {sizes}"
