"""How long a launch may stay silent before it counts as hung. Pure: no I/O.

A launch is silent since its last progress: a stage that rank 0 reported, or a step, collective or phase that some rank
finished. A hang makes no progress; a slow machine does, if late. So:

- Once a step has been timed, the patience is a few such steps, whether the ranks use the processor or not: a rank that
  spins on a device that hangs does.
- Before that, nobody knows how long a step may take (a first forward, a compiler, a model that is being built). A
  launch whose ranks use the processor or move data is not hung, up to UNTIMED_S. One whose ranks do neither is.
- Before rank 0's first report, torchrun and torch start, ranks meet and build the model: that has a limit of its own.

Also how long the ranks of a launch take to find one another, on top of starting Python. All ranks ask one store, a
thread of the first host's torchrun, for each other's addresses, so its work is the time that grows. Its own processor
time was measured on loopback (benchmarks/joining.py): ranks share cores there, so wall time says nothing of ranks on
hosts of their own. For a group of N ranks:

- Gloo connects every rank with every other: 34 to 45 us x N^2 (16 to 256 ranks), and a connection each in every rank.
- From LAZY_RANKS on, two ranks connect when they first exchange something. An all-reduce and a barrier connect a rank
  with about log2 N others: 96 to 135 us x N log2 N (16 to 512 ranks), and as many connections.

Beyond MEASURED_RANKS the range goes from N log2 N to N^2. Ranks then compare their clocks, one host after the other.
Groups of a mesh's axes are too small to count. NCCL's own communicators were not measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scaling.settings.plan import Plan

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


LAZY_RANKS = 128
"""From so many ranks on, Gloo connects two ranks when they first exchange something."""
MEASURED_RANKS = 512
"""The most ranks whose joining was measured."""
MESH_S = (3.4e-5, 4.5e-5)
"""The store's time for a mesh over N^2: least and most."""
LAZY_S = (9.6e-5, 1.35e-4)
"""The store's time over N log2 N where ranks connect at first use: least and most."""
CLOCK_HOST_S = (0.0053, 0.0086)
"""To compare one host's clock: 40 exchanges, each there and back in 2 x 66 to 108 us (emulated hosts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """About how long the ranks of a launch take to join."""

    low_s: float
    high_s: float
    measured: bool
    """Whether so many ranks were measured; beyond that the range is an extrapolation."""


def lazy(ranks: int) -> bool:
    """Whether Gloo connects the ranks of such a launch when they first exchange something."""
    return ranks >= LAZY_RANKS


def joining(plan: Plan) -> Joining:
    """How long the ranks of a plan's largest launch take to join, and to compare their clocks once."""
    groups = [plan.ranks]
    groups += [len(part) for n in plan.spec.world_sizes if n > 1 for part in plan.sub_groups(n)]
    groups += [len(pair) for pairs in plan.pairings() for pair in pairs]
    low_s, high_s = (
        sum(group_s(n, at_first_use=lazy(plan.ranks))[k] for n in groups) + CLOCK_HOST_S[k] * (plan.hosts - 1)
        for k in (0, 1)
    )
    return Joining(low_s=low_s, high_s=high_s, measured=plan.ranks <= MEASURED_RANKS)


def start_limit_s(plan: Plan) -> int:
    """How long a launch on a cluster may take to begin: `cluster.start_s`, and the longest time to join, s."""
    return plan.spec.cluster.start_s + math.ceil(joining(plan).high_s)


def group_s(ranks: int, *, at_first_use: bool) -> tuple[float, float]:
    """The store's time for a group, least and most, s. `at_first_use`: when ranks connect; else at once, in a mesh."""
    if not at_first_use:
        return MESH_S[0] * ranks**2, MESH_S[1] * ranks**2
    low, high = (scale * ranks * math.log2(max(2, ranks)) for scale in LAZY_S)
    if ranks > MEASURED_RANKS:
        high = group_s(MEASURED_RANKS, at_first_use=True)[1] * (ranks / MEASURED_RANKS) ** 2
    return low, high
