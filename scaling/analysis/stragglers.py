"""Late ranks by counterfactual: the step replayed with a rank's ready times replaced by its peers'.

Comparing the ranks' own phase times does not do: under DDP everybody's backward waits for the
slowest, so wall times agree. What differs is when each rank is ready with each bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.analysis.quantities import PHASES, TrialRecords
from scaling.analysis.results import Measured, Straggler
from scaling.analysis.simulate import period, period_without
from scaling.analysis.stats import Floats, Rounds

FLOOR = 0.01
"""A rank that costs less than this share of the step is not called late."""
CANDIDATES = 4
"""So many ranks with the latest ready times are looked at."""


@dataclass(frozen=True, slots=True)
class Late:
    """A late rank and what it costs the step, ns."""

    rank: int
    cost_ns: Measured
    skew_ns: Measured


def late_ranks(records: TrialRecords, rounds: Rounds, floor: float) -> tuple[Late, ...]:
    """Ranks whose cost's interval lies above the greater of `floor` (a share of the step) and FLOOR; worst first."""
    n = records.trial.world_size
    step = rounds.measure("plain")
    if n < 2 or not records.cycles or step is None:
        return ()
    lateness = np.mean([c.compute_end.mean(axis=0) for c in records.cycles], axis=0)
    late = []
    for rank in np.argsort(-lateness)[: min(CANDIDATES, n)]:
        cost: dict[tuple[int, int], float] = {}
        skew: dict[tuple[int, int], float] = {}
        for cycle in records.cycles:
            whole = period(cycle.ready, cycle.compute_end, cycle.transfer)
            without = period_without(int(rank), cycle.ready, cycle.compute_end, cycle.transfer)
            cost[cycle.key] = float((whole - without).mean())
            peers = np.arange(n) != rank
            skew[cycle.key] = float((cycle.ready[:, rank, 0] - cycle.ready[:, peers, 0].mean(axis=1)).mean())
        name = f"cost.{rank}"
        grown = rounds.extend({name: records.per_round(cost), "skew": records.per_round(skew)})
        cost_ns, skew_ns = grown.measure(name), grown.measure("skew")
        if cost_ns is None or cost_ns.low is None or skew_ns is None:
            continue
        if cost_ns.low > max(floor, FLOOR) * step.value:
            late.append(Late(int(rank), cost_ns, skew_ns))
    return tuple(sorted(late, key=lambda item: -item.cost_ns.value))


def describe(late: Late, records: TrialRecords, typical: set[int], rounds: Rounds) -> Straggler:
    """The late rank's phase, and whether it is slow alone too."""
    mine, others = records.arm("probe", ranks={late.rank}), records.arm("probe", ranks=typical)
    excess: dict[str, float] = {}
    for phase in PHASES[:-1]:  # waiting for communication is what the others do
        difference = records.column(mine, phase) - records.column(others, phase)
        excess[phase] = float(np.nanmean(difference))
    phase = max(excess, key=lambda name: excess[name])
    return Straggler(
        rank=late.rank,
        phase="backward" if phase == "compute" else phase,
        by_itself=_slow_alone(late, records, typical, rounds),
        cost_ms=_ms(late.cost_ns),
        skew_ms=_ms(late.skew_ns),
    )


def _slow_alone(late: Late, records: TrialRecords, typical: set[int], rounds: Rounds) -> bool | None:
    mine = records.column(records.arm("bare_one", ranks={late.rank}), "step")
    others = records.column(records.arm("bare_one", ranks=typical), "step")
    difference: Floats = mine - others
    found = rounds.extend({"alone": difference}).measure("alone")
    if found is None or found.low is None:
        return None
    return found.low > 0 and found.value > late.cost_ns.value / 2


def _ms(number: Measured) -> Measured:
    low = None if number.low is None else number.low / 1e6
    high = None if number.high is None else number.high / 1e6
    return Measured(value=number.value / 1e6, low=low, high=high, n=number.n)
