"""Find late ranks by a counterfactual: the step if a rank's own time were its peers'.

Comparing the ranks' phase times is not enough: under DDP every rank's backward waits for the slowest, so wall times
agree. What differs is the time that each rank does not wait. Steps without details tell it: they have the stamps of
their phases and of their waits, and none of single collectives, so they are as they would be without any stamps. The
rank with the longest time of its own is the one that the others wait for:

    own time = step - waits           lead of some ranks = mean of (largest own time - largest own time of the others)

The lead is what the step would be shorter by if these ranks were as fast as the others, where the link was not what
everybody waited for. The wait of the rank that waits least is the data's alone, up to where ranks are late by turns.
The detailed steps are replayed for one thing only: what of a rank's lateness the link hides.

Arrays: S steps, R ranks; times in ns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.analysis.decompose.quantities import ELSEWHERE, OWN_PHASES, WAIT, Key, TrialRecords
from scaling.analysis.network.replay import Program, Replay
from scaling.analysis.results import Measured, Straggler
from scaling.analysis.results.verdicts import NOTABLE
from scaling.analysis.statistics.rounds import MS, Floats, Means, Rounds, level_of_each, student, two_way
from scaling.records.tables import ITS_PART, Frame, few_rounds, in_order
from scaling.settings.schedule import PROBE

_VALUES = {
    "length": pl.col("end_ns") - pl.col("begin_ns"),
    "behind": pl.col("sync_end_ns") - pl.col("compute_end_ns") + pl.col("earlier_wait_ns"),
    "buffers": pl.col("buffer_wait_ns"),
    "inside": pl.col("forward_wait_ns") + pl.col("backward_wait_ns") + ELSEWHERE,
    "begin": pl.col("buffer_begin_ns"),
    "end": pl.col("buffer_end_ns"),
}
"""A step, what it waits behind backward, for buffers and elsewhere; and its last broadcast."""


def queue_waits(steps: Frame) -> Frame:
    """The steps of devices with one work queue, where a collective that waits for a late rank holds up kernels too.

    Stamps tell such waits from compute by other ranks alone: of backward, and of what is behind it where a loop waits
    for its gradients there, what a rank takes longer than the quickest one counts as waiting.
    """

    def beyond(computed: pl.Expr) -> pl.Expr:
        longer = computed - computed.min().over("launch", "round", "block", "step")
        return pl.when(pl.col("arm") == PROBE).then(longer).otherwise(0)

    stepped = pl.col("optimizer_ns") - pl.col("optimizer_wait_ns")
    behind = pl.when(pl.col("optimizer_wait_ns") > 0).then(stepped).otherwise(0)
    return steps.with_columns(
        backward_wait_ns=pl.col("backward_wait_ns") + beyond(pl.col("backward_ns") - WAIT),
        optimizer_wait_ns=pl.col("optimizer_wait_ns") + beyond(behind),
    )


def waits_look_like_compute(steps: Frame, n: int) -> bool:
    """Whether ranks take equally long by themselves only because of what `queue_waits` takes for waiting.

    Nobody may have seen whether a collective's stream shares the work queue of the kernels that compute. Where it does,
    who waits for a late rank computes for longer in backward by just as much as that rank is late elsewhere.
    """
    seen, without = read_light(steps, n), read_light(queue_waits(steps), n)
    if seen is None or without is None:
        return False
    apart = [np.ptp(np.median(np.concatenate([*light.own_ns.values()]), axis=0)) for light in (seen, without)]
    step = float(np.median(np.concatenate([*seen.own_ns.values()])))
    return bool(apart[0] < apart[1] / 2 and apart[1] > NOTABLE * step)


SLOW, FEW, STEPS_MIN = 3.0, 0.1, 10
"""A step is slow if a rank exceeds its own median by SLOW times what all steps but a share of FEW exceed it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """The steps of one trial that all ranks recorded, by (launch, round)."""

    own_ns: Mapping[Key, Floats]
    """S x R."""
    waited: Mapping[Key, Floats]
    """R: mean over the steps."""
    alike: Mapping[Key, float]
    """What every rank waits at least, mean over the steps.

    At each place the wait of the rank that waits least; for buffers from when the last rank has come, since a root that
    is done before that waits for nobody.
    """

    def without_single_slow(self) -> Light:
        """These steps without the few in which a rank takes far longer than it does in others (SLOW, FEW).

        A pause of the machine says nothing about the rank that it hits, and one is enough to hide a rank that is late
        in every step. What is slow more often stays.
        """
        if sum(map(len, self.own_ns.values())) < STEPS_MIN:
            return self
        every = np.concatenate(list(self.own_ns.values()))
        usual = np.median(every, axis=0)
        more = (every - usual).max(axis=1)
        slow = SLOW * float(np.quantile(more, 1 - FEW))
        kept = {key: steps[(steps - usual).max(axis=1) <= slow] for key, steps in self.own_ns.items()}
        return replace(self, own_ns={key: steps for key, steps in kept.items() if len(steps)})

    def changed(self, change: Callable[[Key, Floats], Floats]) -> Light:
        """These steps with other own times."""
        return replace(self, own_ns={key: change(key, ns) for key, ns in self.own_ns.items()})


def read_light(steps: Frame, n: int) -> Light | None:
    """None where no block is whole, or where no wait was stamped. `steps`: of `n` ranks together."""
    if n < 2:
        return None
    chosen = (pl.col("arm") == PROBE) & ~pl.col("detailed") & (pl.col("round") >= 0)
    needed = sorted({name for value in _VALUES.values() for name in value.meta.root_names()})
    rows = steps.filter(chosen).select("launch", "round", "block", "step", "rank", *needed, ITS_PART)
    blocks: dict[Key, list[tuple[Floats, Floats, Floats]]] = {}
    for some, _ in few_rounds(rows, rows.clear()):
        for key, grid in grids_of(some, n, _VALUES):
            total = grid["behind"] + grid["buffers"] + grid["inside"]
            late = np.minimum(grid["end"], grid["begin"].max(axis=1, keepdims=True)) - grid["begin"]
            for_data = (grid["behind"], grid["buffers"] - np.maximum(late, 0.0), grid["inside"])
            least = np.sum([wait.min(axis=1) for wait in for_data], axis=0)
            blocks.setdefault(key, []).append((grid["length"] - total, total, least))
    rounds = {
        key: [np.concatenate(each) for each in zip(*parts, strict=True)] for key, parts in blocks.items()
    }
    if not any(total.any() for _, total, _ in rounds.values()):
        return None
    return Light(
        own_ns={key: own_ns for key, (own_ns, _, _) in rounds.items()},
        waited={key: total.mean(axis=0) for key, (_, total, _) in rounds.items()},
        alike={key: float(least.mean()) for key, (_, _, least) in rounds.items()},
    )


def grids_of(
    steps: pl.DataFrame, n: int, values: Mapping[str, pl.Expr]
) -> list[tuple[Key, dict[str, Floats]]]:
    """Values of each block that all ranks have whole, S x R by name, in the order of launches and blocks."""
    grids = []
    ordered = in_order(
        steps.select("launch", "round", "block", "step", "rank", **values),
        ("launch", "block", "step", "rank"),
    )
    for part in ordered.partition_by("launch", "block", maintain_order=True):
        if part.height == part["step"].n_unique() * n and part["rank"].n_unique() == n:
            key = (int(part["launch"][0]), int(part["round"][0]))
            grids.append((key, {name: part[name].to_numpy().astype(float).reshape(-1, n) for name in values}))
    return grids


def lead(own_ns: Floats, ranks: Collection[int]) -> float:
    """By how much the latest of all ranks has more own time than the latest of the others, mean over the steps."""
    others: NDArray[np.intp] = np.setdiff1d(np.arange(own_ns.shape[1]), list(ranks))
    return float((own_ns.max(axis=1) - own_ns[:, others].max(axis=1)).mean())


def waits(records: TrialRecords) -> dict[str, Floats]:
    """Where no details tell data from late ranks: `exposed_transfer` is what every rank waits, `exposed_skew` the rest.

    One value a round; `exposed_all` is both.
    """
    light = records.light
    assert light is not None
    whole = records.per_round({key: float(waited.mean()) for key, waited in light.waited.items()})
    alike = records.per_round(light.alike)
    return {"exposed_all": whole, "exposed_transfer": alike, "exposed_skew": whole - alike}


Ranks = NDArray[np.intp]

ALIKE = 0.1
"""Alone a rank is as fast as the others if it takes less than this share of its cost longer."""
FLOOR = 0.01
"""A rank that costs less than this share of the step is not called late."""
CLEARLY = 1.5
"""Width of the interval, over that of 95 %, by which a rank has to be behind in every noise."""
STEP, LATEST = "own.step", "own.latest"
"""The step that own times are of, and its largest own time, ns."""
LATENESS, REPLAYED_LATENESS = "own.lateness", "replayed.lateness"
"""By how much the latest rank of each step is behind the typical ranks' mean; the same of the replayed steps, ns."""
CANDIDATES = 4
"""How many of the latest ranks are tried, and how many of the latest hosts with all their ranks."""


@dataclass(frozen=True, slots=True)
class Late:
    """The late ranks, latest first, and what all of them together cost the step, ns."""

    ranks: tuple[int, ...]
    cost_ns: Measured
    skew_ns: Measured
    """How much longer the others wait than the latest of them, in a step."""
    host: int | None = None
    """Host of the latest rank, if it has several ranks and all of them are late."""


def late_ranks(records: TrialRecords, rounds: Rounds, floor: float, hosts: Sequence[int] = ()) -> Late | None:
    """Ranks whose cost's interval lies above the greater of `floor` (a share of the step) and FLOOR.

    Ranks that are slow by turns cost a step something too, which is why those that are called late have to be behind
    the others in the mean, and their cost has to exceed the A/A floor. Where they are clearly behind, it has to exceed
    FLOOR alone.

    Candidates are tried from the latest on, each together with those before it: if two ranks are equally late, neither
    alone costs anything while the other stays late. For the same reason, whole hosts are tried after single ranks.
    At most half of all ranks are called late. `hosts`: of each rank; empty if not known.
    """
    n = records.trial.world_size
    step = rounds.measure("plain")
    if n < 2 or step is None or not (records.light or records.cycles):
        return None
    if records.light is not None:
        records = replace(records, light=records.light.without_single_slow())
    by_round = _own_times(records)
    lateness, chance = np.mean(list(by_round.values()), axis=0), _latest_of_equals(by_round, records, rounds)
    order = [int(rank) for rank in np.argsort(-lateness)]
    late: Late | None = None
    tried: set[tuple[int, ...]] = {()}
    for candidate in _candidates(order, lateness, hosts):
        before = late.ranks if late else ()
        ranks = tuple(rank for rank in order if rank in candidate or rank in before)
        if ranks in tried or len(ranks) > n // 2:
            continue
        tried.add(ranks)
        new = [rank for rank in ranks if rank not in before]
        peers = np.setdiff1d(np.arange(n), ranks)
        behind = records.of_own_times(_mean_of(new)) - records.of_own_times(_mean_of(peers))
        grown = rounds.extend(
            {f"late.{name}": ns for name, ns in _costs(records, ranks).items()}
            | {f"before.{name}": ns for name, ns in _costs(records, before).items()}
            | {"behind": behind, "skew": _skew(records, order[0], peers)}
        )
        cost, more = grown.measure(_cost), grown.measure(lambda m: _cost(m) - _cost(m, "before"))
        lag, skew = grown.measure("behind"), grown.measure("skew")
        if cost is None or more is None or skew is None or lag is None:
            continue
        if not lag.surely_above(0) or lag.value <= chance:
            continue
        systematic = lag.value - CLEARLY * (lag.half_width or 0.0) > FLOOR * step.value
        if more.surely_above((FLOOR if systematic else max(floor, FLOOR)) * step.value):
            late = Late(ranks, cost, skew, _whole_host(ranks, hosts))
    return late


def _latest_of_equals(own_ns: Mapping[Key, Floats], records: TrialRecords, rounds: Rounds) -> float:
    """By how much the latest of all ranks is behind the others in 95 % of runs in which all are equal, ns.

    The latest of many ranks is late by chance, and a few rounds do not show their own spread. So it is taken from all
    ranks together (two-way residuals of ranks and units of rounds), and the level pays for every rank (Bonferroni).
    `own_ns`: as `_own_times` returns it.
    """
    n = records.trial.world_size
    units: dict[int, list[Floats]] = {}
    for key, unit in zip(records.keys(), rounds.unit, strict=True):
        if key in own_ns:
            units.setdefault(int(unit), []).append(own_ns[key])
    means = np.array([np.mean(some, axis=0) for some in units.values()]).reshape(-1, n)
    degrees, spread = two_way(means)
    if degrees < 1:
        return math.inf
    return student(degrees, level_of_each(n)) * spread * math.sqrt((1 + 1 / (n - 1)) / len(means))


def _candidates(order: list[int], lateness: Floats, hosts: Sequence[int]) -> Iterator[set[int]]:
    """The latest rank, the two latest, and so on; then all ranks of the latest host, of the two latest, and so on."""
    yield from (set(order[:count]) for count in range(1, CANDIDATES + 1))
    ranks_of = {host: [rank for rank in order if hosts[rank] == host] for host in set(hosts)}
    latest = sorted(ranks_of, key=lambda host: -float(lateness[ranks_of[host]].mean()))
    yield from ({r for host in latest[:count] for r in ranks_of[host]} for count in range(1, CANDIDATES + 1))


def _whole_host(ranks: tuple[int, ...], hosts: Sequence[int]) -> int | None:
    """The host of the latest of the `ranks`, if it has several ranks and all of them are among `ranks`."""
    if not hosts:
        return None
    on_host = {rank for rank, host in enumerate(hosts) if host == hosts[ranks[0]]}
    return hosts[ranks[0]] if len(on_host) > 1 and on_host <= set(ranks) else None


def _own_times(records: TrialRecords) -> dict[Key, Floats]:
    """R by round: each rank's own time in a step, ns."""
    if records.light is not None:
        return {key: steps.mean(axis=0) for key, steps in records.light.own_ns.items()}
    by_round: dict[Key, Floats] = {}
    for cycle in records.cycles:
        by_round[cycle.key] = by_round.get(cycle.key, 0.0) + cycle.replay.computed().mean(axis=0)
    return by_round


def _mean_of(ranks: Sequence[int] | Ranks) -> Callable[[Floats], float]:
    return lambda own_ns: float(own_ns[:, list(ranks)].mean())


def _costs(records: TrialRecords, ranks: tuple[int, ...]) -> dict[str, Floats]:
    """What some ranks' lateness costs a step, by round, ns.

    `lead`: by their own times alone. `hidden`: what of that the link hides, since it was busy until then anyway; by
    the replayed detailed steps, and only where there are any.
    """
    return {
        "lead": records.of_own_times(lambda own_ns: lead(own_ns, ranks)),
        "hidden": records.of_cycles(lambda cycle: _hidden(cycle.replay, ranks) if ranks else 0.0),
    }


def _hidden(replay: Replay | Program, ranks: tuple[int, ...]) -> float:
    """Mean over the replayed steps; below 0 where others are late in another part of the same step."""
    saved = float((replay.period() - replay.without(ranks).period()).mean())
    return lead(replay.computed(), ranks) - saved


def _cost(m: Means, which: str = "late") -> Floats:
    return m[f"{which}.lead"] - m.get(f"{which}.hidden", 0.0)


def _skew(records: TrialRecords, rank: int, peers: Ranks) -> Floats:
    """How much longer others wait than a rank, per round."""
    if records.light is None:
        return records.of_cycles(lambda c: float(c.waited[:, peers].mean() - c.waited[:, rank].mean()))
    waits = records.light.waited.items()
    return records.per_round({key: float(each[peers].mean() - each[rank]) for key, each in waits})


def latest(own_ns: Floats) -> float:
    """The largest own time of each step, mean over the steps."""
    return float(own_ns.max(axis=1).mean())


def quantities(records: TrialRecords, evened: TrialRecords, typical: set[int]) -> dict[str, Floats]:
    """What the ranks' lateness costs together, by turns or always. `evened`: as if all had equal tokens."""
    usual = _mean_of(sorted(typical))
    values = {LATEST: records.of_own_times(latest)}
    values[LATENESS] = values[LATEST] - evened.of_own_times(usual)
    if records.light is not None:
        steps = records.light.own_ns.items()
        values[STEP] = records.per_round(
            {k: float((x.mean(axis=0) + records.light.waited[k]).mean()) for k, x in steps}
        )
    else:
        values[STEP] = records.of_cycles(lambda c: float(c.step.mean()))
    replayed = records.of_cycles(lambda c: latest(c.replay.computed()))
    values[REPLAYED_LATENESS] = replayed - evened.of_cycles(lambda c: usual(c.replay.computed()))
    return values


def share(m: Means) -> Floats:
    """What the ranks' lateness costs together, as a share of the step: less what of it the link hides."""
    hidden = m[REPLAYED_LATENESS] - (m["sim"] - m["sim_typical"]) if REPLAYED_LATENESS in m else 0.0
    return (m[LATENESS] - hidden) / m[STEP]


def describe(
    late: Late,
    records: TrialRecords,
    typical: set[int],
    rounds: Rounds,
    explained_ns: Mapping[str, float],
) -> Straggler:
    """The late rank's phase, and whether it is slow in bare_one too.

    `explained_ns`: by phase, what the rank takes longer for another reason.
    """
    detailed = None if records.light is None else False
    mine, others = (
        records.arm("probe", detailed=detailed, ranks=ranks) for ranks in ({late.ranks[0]}, typical)
    )
    excess: dict[str, float] = {}
    for phase in OWN_PHASES:  # not `exposed`: the others wait, not the late rank
        difference = mine[phase] - others[phase]
        excess[phase] = float(np.nanmean(difference)) - explained_ns.get(phase, 0.0)
    more = {}
    for name, light in records.named.items():
        own_ns = np.mean([steps.mean(axis=0) for steps in light.own_ns.values()], axis=0)
        more[name] = float(own_ns[late.ranks[0]] - own_ns[sorted(typical)].mean())
    return Straggler(
        rank=late.ranks[0],
        phase=most_grown(excess, more, mixed=records.beside.unseen_forwards),
        by_itself=_slow_alone(late, records, typical, rounds),
        host=late.host,
        cost_ms=late.cost_ns * MS,
        skew_ms=late.skew_ns * MS,
    )


def most_grown(more: Mapping[str, float], more_named: Mapping[str, float], *, mixed: bool) -> str:
    """The phase that takes most longer; one that the loop names, if it takes more than half as much as that.

    Named ones are part of `host`, or of the others and then named in their place. `mixed`: another model's forward
    counts as `input` or `host`, so neither is told; `step` is.
    """
    phases = {**more, "host": more["host"] - sum(more_named.values())}
    near = {name: ns for name, ns in more_named.items() if ns > max(phases.values()) / 2} or phases
    phase = max(near, key=lambda name: near[name])
    if mixed and phase in ("input", "host"):
        return "step"
    return "backward" if phase == "compute" else phase


def _slow_alone(late: Late, records: TrialRecords, typical: set[int], rounds: Rounds) -> bool | None:
    mine, others = (records.arm("bare_one", ranks=ranks)["step"] for ranks in ({late.ranks[0]}, typical))
    longer = rounds.extend({"alone": mine - others}).measure("alone")
    if longer is None or longer.interval is None:
        return None
    cost_ns = late.cost_ns.value
    if longer.surely_above(0) and longer.value > cost_ns / 2:
        return True
    return False if longer.surely_below(cost_ns / 2) and longer.value < ALIKE * cost_ns else None
