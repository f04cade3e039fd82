"""Find late ranks by a counterfactual: replay the step with a rank's ready times replaced by its peers'.

Comparing the ranks' phase times is not enough: under DDP every rank's backward waits for the slowest, so wall times
agree. What differs is when each rank is ready with each bucket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.decompose.quantities import PHASES, TrialRecords
from scaling.analysis.results import Measured, Straggler
from scaling.analysis.statistics.rounds import MS, Floats, Rounds

FLOOR = 0.01
"""A rank that costs less than this share of the step is not called late."""
CLEARLY = 1.5
"""Width of the interval, over that of 95 %, by which a rank has to be behind in every noise."""
CANDIDATES = 4
"""How many of the latest ranks are tried, and how many of the latest hosts with all their ranks."""


@dataclass(frozen=True, slots=True)
class Late:
    """The late ranks, latest first, and what all of them together cost the step, ns."""

    ranks: tuple[int, ...]
    cost_ns: Measured
    skew_ns: Measured
    """How long the others wait for the latest of them at the first bucket."""
    host: int | None = None
    """Host of the latest rank, if it has several ranks and all of them are late."""


def late_ranks(records: TrialRecords, rounds: Rounds, floor: float, hosts: Sequence[int] = ()) -> Late | None:
    """Ranks whose cost's interval lies above the greater of `floor` (a share of the step) and FLOOR.

    Ranks that are slow by turns cost a step something too, which is why the cost has to exceed the A/A floor. A rank
    that is surely behind the others in the mean is no such noise; its cost has to exceed FLOOR alone.

    Candidates are tried from the latest on, each together with those before it: if two ranks are equally late, neither
    alone costs anything while the other stays late. For the same reason, whole hosts are tried after single ranks.
    At most half of all ranks are called late. `hosts`: of each rank; empty if not known.
    """
    n = records.trial.world_size
    step = rounds.measure("plain")
    if n < 2 or not records.cycles or step is None:
        return None
    lateness = np.mean([c.replay.computed().mean(axis=0) * c.of for c in records.cycles], axis=0)
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
        values["behind"] = _behind(records, [rank for rank in ranks if rank not in before], ranks)
        values["more"] = values["cost"] - (_cost(records, before) if before else 0.0)
        grown = rounds.extend(values)
        cost, more, skew = (grown.measure(name) for name in ("cost", "more", "skew"))
        if cost is None or more is None or skew is None:
            continue
        lag = grown.measure("behind")
        systematic = lag is not None and _clearly_above(lag, FLOOR * step.value)
        if more.surely_above((FLOOR if systematic else max(floor, FLOOR)) * step.value):
            late = Late(ranks, cost, skew, _whole_host(ranks, hosts))
    return late


def _clearly_above(found: Measured, bar: float) -> bool:
    """Whether the interval, made CLEARLY times as wide, lies above a bar."""
    return found.half_width is not None and found.value - CLEARLY * found.half_width > bar


def _candidates(order: list[int], lateness: Floats, hosts: Sequence[int]) -> Iterator[set[int]]:
    """The latest rank, the two latest, and so on; then all ranks of the latest host, of the two latest, and so on."""
    yield from (set(order[:count]) for count in range(1, CANDIDATES + 1))
    own = {host: [rank for rank in order if hosts[rank] == host] for host in set(hosts)}
    latest = sorted(own, key=lambda host: -float(lateness[own[host]].mean()))
    yield from ({r for host in latest[:count] for r in own[host]} for count in range(1, CANDIDATES + 1))


def _whole_host(ranks: tuple[int, ...], hosts: Sequence[int]) -> int | None:
    """The host of the latest of the `ranks`, if it has several ranks and all of them are among `ranks`."""
    if not hosts:
        return None
    own = {rank for rank, host in enumerate(hosts) if host == hosts[ranks[0]]}
    return hosts[ranks[0]] if len(own) > 1 and own <= set(ranks) else None


def _cost(records: TrialRecords, ranks: tuple[int, ...]) -> Floats:
    """Step minus the step without these ranks' lateness, by round, ns."""
    return records.of_cycles(lambda c: float((c.replay.period() - c.replay.without(ranks).period()).mean()))


def _behind(records: TrialRecords, ranks: list[int], late: tuple[int, ...]) -> Floats:
    """How much longer these ranks' own time in a step is than that of all that are not late, per round, ns."""
    peers = np.setdiff1d(np.arange(records.trial.world_size), late)
    return records.of_cycles(
        lambda c: float(c.replay.computed()[:, ranks].mean() - c.replay.computed()[:, peers].mean())
    )


def _skew(records: TrialRecords, rank: int, late: tuple[int, ...]) -> Floats:
    """How much later than the others a rank is with its first bucket, per round; of several micro-steps the most.

    A sharded rank: over a whole step.
    """
    peers = np.setdiff1d(np.arange(records.trial.world_size), late)
    found: dict[tuple[int, int], float] = {}
    for cycle in records.cycles:
        skew = cycle.replay.behind(rank, peers)
        found[cycle.key] = max(skew, found.get(cycle.key, skew))
    return records.per_round(found)


def describe(
    late: Late,
    records: TrialRecords,
    typical: set[int],
    rounds: Rounds,
    explained_ns: Mapping[str, float] | None = None,
) -> Straggler:
    """The late rank's phase, and whether it is slow in bare_one too.

    `explained_ns`: by phase, what the rank takes longer for another reason.
    """
    mine, others = records.arm("probe", ranks={late.ranks[0]}), records.arm("probe", ranks=typical)
    excess: dict[str, float] = {}
    for phase in PHASES[:-1]:  # `exposed` is left out: the others wait, not the late rank
        difference = mine[phase] - others[phase]
        excess[phase] = float(np.nanmean(difference)) - (explained_ns or {}).get(phase, 0.0)
    phase = max(excess, key=lambda name: excess[name])
    return Straggler(
        rank=late.ranks[0],
        phase="backward" if phase == "compute" else phase,
        by_itself=_slow_alone(late, records, typical, rounds),
        host=late.host,
        cost_ms=late.cost_ns * MS,
        skew_ms=late.skew_ns * MS,
    )


def _slow_alone(late: Late, records: TrialRecords, typical: set[int], rounds: Rounds) -> bool | None:
    mine = records.arm("bare_one", ranks={late.ranks[0]})["step"]
    others = records.arm("bare_one", ranks=typical)["step"]
    difference: Floats = mine - others
    found = rounds.extend({"alone": difference}).measure("alone")
    if found is None or found.interval is None:
        return None
    return found.surely_above(0) and found.value > late.cost_ns.value / 2
