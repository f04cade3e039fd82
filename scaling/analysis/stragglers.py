"""Late ranks by counterfactual: the step replayed with a rank's ready times replaced by its peers'.

Comparing the ranks' own phase times does not do: under DDP everybody's backward waits for the
slowest, so wall times agree. What differs is when each rank is ready with each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.loss import earlier_skew
from scaling.analysis.quantities import EARLIER, PHASES, TrialRecords
from scaling.analysis.results import Measured, Straggler
from scaling.analysis.simulate import period, period_without
from scaling.analysis.stats import Floats, Rounds, scaled

FLOOR = 0.01
"""A rank that costs less than this share of the step is not called late."""
CANDIDATES = 4
"""So many ranks with the latest ready times are looked at, and so many hosts with all of their ranks."""


@dataclass(frozen=True, slots=True)
class Late:
    """The late ranks, latest first, and what all of them together cost the step, ns."""

    ranks: tuple[int, ...]
    cost_ns: Measured
    skew_ns: Measured
    """How long the others wait for the latest of them at the first bucket."""
    host: int | None = None
    """That of the latest, where it has several ranks and all of them are late."""


def late_ranks(records: TrialRecords, rounds: Rounds, floor: float, hosts: Sequence[int] = ()) -> Late | None:
    """Ranks whose cost's interval lies above the greater of `floor` (a share of the step) and FLOOR.

    Candidates are tried from the latest on, each together with those before it: of two ranks that
    are equally late, neither costs anything as long as the other stays. Of a host whose many ranks
    are equally late, no few cost anything: after single ranks, whole hosts are tried likewise. Never
    more than half of all ranks. `hosts`: of each rank; empty where that is not known.
    """
    n = records.trial.world_size
    step = rounds.measure("plain")
    if n < 2 or not records.cycles or step is None:
        return None
    lateness = np.mean([c.compute_end.mean(axis=0) for c in records.cycles], axis=0)
    order = [int(rank) for rank in np.argsort(-lateness)]
    late: Late | None = None
    tried: set[tuple[int, ...]] = {()}
    for candidate in _candidates(order, lateness, hosts):
        before = late.ranks if late else ()
        ranks = tuple(rank for rank in order if rank in candidate or rank in before)
        if ranks in tried or len(ranks) > n // 2:
            continue
        tried.add(ranks)
        values = {"cost": _cost(records, ranks), "skew": _skew(records, order[0], ranks)}
        values["more"] = values["cost"] - (_cost(records, before) if before else 0.0)
        grown = rounds.extend(values)
        cost, more, skew = (grown.measure(name) for name in ("cost", "more", "skew"))
        if cost is None or more is None or skew is None or more.low is None:
            continue
        if more.low > max(floor, FLOOR) * step.value:
            late = Late(ranks, cost, skew, _whole_host(ranks, hosts))
    return late


def _candidates(order: list[int], lateness: Floats, hosts: Sequence[int]) -> Iterator[set[int]]:
    """The latest rank, the two latest, and so on; then all ranks of the latest host, of the two latest, and so on."""
    yield from (set(order[:count]) for count in range(1, CANDIDATES + 1))
    own = {host: [rank for rank in order if hosts[rank] == host] for host in set(hosts)}
    latest = sorted(own, key=lambda host: -float(lateness[own[host]].mean()))
    yield from ({r for host in latest[:count] for r in own[host]} for count in range(1, CANDIDATES + 1))


def _whole_host(ranks: tuple[int, ...], hosts: Sequence[int]) -> int | None:
    """The host of the latest of the `ranks`, where it has several and all of them are among these."""
    if not hosts:
        return None
    own = {rank for rank, host in enumerate(hosts) if host == hosts[ranks[0]]}
    return hosts[ranks[0]] if len(own) > 1 and own <= set(ranks) else None


def _cost(records: TrialRecords, ranks: tuple[int, ...]) -> Floats:
    """Step minus the step without these ranks' lateness, per round."""
    found = {}
    for cycle in records.cycles:
        whole = period(cycle.ready, cycle.compute_end, cycle.transfer, cycle.start)
        without = period_without(ranks, cycle.ready, cycle.compute_end, cycle.transfer, cycle.start)
        found[cycle.key] = float((whole - without).mean())
    return records.per_round(found)


def _skew(records: TrialRecords, rank: int, late: tuple[int, ...]) -> Floats:
    """How much later than the others a rank is with its first bucket, per round."""
    peers = np.setdiff1d(np.arange(records.trial.world_size), late)
    return records.per_round(
        {
            c.key: float((c.ready[:, rank, 0] - c.ready[:, peers, 0].mean(axis=1)).mean())
            for c in records.cycles
        }
    )


def describe(late: Late, records: TrialRecords, typical: set[int], rounds: Rounds) -> Straggler:
    """The late rank's phase, and whether it is slow alone too."""
    mine, others = records.arm("probe", ranks={late.ranks[0]}), records.arm("probe", ranks=typical)
    excess: dict[str, float] = {}
    for phase in PHASES[:-1]:  # waiting for communication is what the others do
        difference = records.column(mine, phase) - records.column(others, phase)
        excess[phase] = float(np.nanmean(difference))
    phase = max(excess, key=lambda name: excess[name])
    cost = late.cost_ns
    if np.nanmax(rounds.values[EARLIER], initial=0.0) > 0:  # the replay is of the last micro-step
        grown = rounds.extend({"cost": _cost(records, late.ranks)})
        cost = grown.measure(lambda m: m["cost"] + earlier_skew(m)) or cost
    return Straggler(
        rank=late.ranks[0],
        phase="backward" if phase == "compute" else phase,
        by_itself=_slow_alone(late, records, typical, rounds),
        host=late.host,
        cost_ms=scaled(cost, 1e-6),
        skew_ms=scaled(late.skew_ns, 1e-6),
    )


def _slow_alone(late: Late, records: TrialRecords, typical: set[int], rounds: Rounds) -> bool | None:
    mine = records.column(records.arm("bare_one", ranks={late.ranks[0]}), "step")
    others = records.column(records.arm("bare_one", ranks=typical), "step")
    difference: Floats = mine - others
    found = rounds.extend({"alone": difference}).measure("alone")
    if found is None or found.low is None:
        return None
    return found.low > 0 and found.value > late.cost_ns.value / 2
