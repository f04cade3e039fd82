"""How long a launch may stay silent before it counts as hung. Pure: no I/O.

A launch is silent since its last progress: a stage that rank 0 reported, or a step, collective or phase that some rank
finished. A hang makes no progress; a slow machine does, if late. So:

- Once a step has been timed, the patience is a few such steps, whether the ranks use the processor or not: a rank that
  spins on a device that hangs does.
- Before that, nobody knows how long a step may take (a first forward, a compiler, a model that is being built). A
  launch whose ranks use the processor or move data is not hung, up to UNTIMED_S. One whose ranks do neither is.
- Before rank 0's first report, torchrun and torch start, ranks meet and build the model: that has a limit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

STEPS = 10
"""A step that takes this many times longer than the one that was timed hangs."""
UNTIMED_S = 900.0
"""The longest that ranks may work without finishing anything, before a step is timed."""
LATE = 4
"""Work that takes this many times longer than expected is late; the usual patience begins then."""
LOADER, COLLECTIVE, LAUNCHER = 0.7, 0.75, 0.82
"""Shares of the patience after which a rank gives up its data workers, then its peers give up the rank that they wait
for, then the launcher gives up the launch: what is nearest to the cause reports it first. The rest is for ending it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What was seen of a launch since its last progress."""

    begun: bool
    """Whether rank 0 has reported a stage."""
    step_s: float | None = None
    """A step, as it was timed; None before that."""
    expected_s: float | None = None
    """About how long what runs now takes, by rank 0; None: not known."""
    moved_s: float | None = None
    """From the last progress to when ranks were last seen to use the processor or to move data (s); 0: not since then.
    None where neither that nor single steps can be seen, only what rank 0 reports."""


def timed_s(step_s: float, timeout_s: float) -> float:
    """The longest that a hang stays unseen once a step took `step_s`; `timeout_s` at least (measure.step_timeout_s)."""
    return max(timeout_s, STEPS * step_s)


def collective_s(step_s: float | None, timeout_s: float) -> float:
    """How long a rank waits for its peers in a collective; `step_s`: a step, as it was timed."""
    return UNTIMED_S if step_s is None else COLLECTIVE * timed_s(step_s, timeout_s)


def patience_s(seen: Silence, *, timeout_s: float, start_s: float) -> float:
    """How long the launcher lets a launch be silent (s). `start_s`: idle ranks before rank 0's first report."""
    late_s = LATE * (seen.expected_s or 0.0)
    if seen.step_s is not None:
        usual_s = LAUNCHER * timed_s(seen.step_s, timeout_s)
        return usual_s if seen.moved_s is not None else timed_s(seen.step_s, timeout_s) + late_s
    if seen.moved_s is None:
        return start_s if seen.expected_s is None else timeout_s + late_s
    usual_s = LAUNCHER * timeout_s if seen.begun else start_s
    return min(max(UNTIMED_S, usual_s + late_s), seen.moved_s + usual_s)
