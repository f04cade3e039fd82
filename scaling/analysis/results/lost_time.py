"""Time that a run spends beyond its typical steps: pauses, stalls, changes of level, and an own loop's goodput."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What an own loop does beside its steps: of one kind, over all launches that count."""

    kind: str
    """As the loop names it, or as it is recognised: save, async save, evaluation; `unknown`."""
    count: int
    seconds: Measured
    """All of them together."""
    where: str
    """Between steps or in them, and the rank where it is one alone."""
    wall_share: float = 0.0
    """Fraction of the loop's time from its first recorded step to its last."""
    steps_beside: Measured | None = None
    """An asynchronous save: plain steps beside it over the others. None: too few to tell, or another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Steps that take far longer than the others and come back."""

    kind: str
    """As of Pause; also garbage collection (Python's) and allocator retry (the device's)."""
    every_steps: int | None
    """None: at no fixed distance."""
    cost_ms: Measured
    """A step, spread over all steps."""
    longer_ms: Measured
    """Each of those steps."""
    where: str
    wall_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A change of level that lasts until the next one, or to the end."""

    ranks: tuple[int, ...]
    """Those whose own time changes, whatever they wait; empty: none alone."""
    phase: str
    """In which they change most; exposed: the waits change and no rank does; step: neither is sure."""
    launch: int
    since_step: int | None
    """Own loops: the step of the training, from 0, with which the new level begins at the latest."""
    since_s: float
    """From the launch's first recorded step."""
    since_unix_s: float | None
    """None where the process did not tell when it started."""
    before_ms: Measured
    """The mean rank's own time in a step; else its waits, or the step."""
    after_ms: Measured
    more_ms: Measured
    """Against the mean of the ranks that do not change, where there are some."""
    step_more_ms: Measured
    reasons: tuple[str, ...] = ()
    """Why the clocks of these ranks' devices are not higher, on the slower side, as NVML names it."""
    sm_mhz_before: Measured | None = None
    sm_mhz_after: Measured | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Where an own loop's time went, over all launches of its folder, by rank 0. The seconds add up to `wall_s`."""

    launches: int
    steps: int
    """Steps that counted."""
    steps_done_twice: int | None
    """Run again after a restart; None where no optimizer counts its steps."""
    share: float
    """What the steps that counted took, as a fraction of `wall_s`."""
    wall_s: float
    """From the start of the first process to the last record."""
    productive_s: float
    """In steps that counted, without waiting for the slowest rank."""
    waiting_s: float
    done_twice_s: float
    start_up_s: float
    """From the start of each process to its first recorded step."""
    between_launches_s: float
    """From the last record of a launch to the start of the next."""
    pauses_s: float
    stalls_s: float
    other_s: float
    """What is left: warm-up beyond a usual step, the probe's own writing, long steps that do not come back."""
