"""A sharded step at a mesh that was not run: torch's own list of collectives, times of the run, links' curves.

What a rank does by itself is known from the arm over a mesh of one rank: when it comes to each unit's all-gather and
reduction (decompose.sharded.Turns), stretched to what the light probe measured with the other ranks. What it sends, in
which order and where it waits, comes from the listing at the mesh in question (spec.listing). With own times o and
transfers T,

    at(launch) = resumed + o       begun = max(at(launch), wire free, what it reduces further is done)
    done = begun + T               resumed = max(resumed + o, done)    at a wait

and the step is the last `resumed`. The prediction is this at the asked mesh over this at the measured one, times the
measured step. All ranks are taken to do alike: the latest of more ranks costs what it cost among those measured.

Times in ns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.decompose.trials import read_trial
from scaling.analysis.quality.launches import counted, of_launches
from scaling.analysis.results import Analysis, Measured
from scaling.records.tables import Tables
from scaling.spec.listing import Listed, ListedCollective
from scaling.spec.plan import Plan
from scaling.spec.schedule import PROBE

Turn = tuple[str, str, int, int]
"""(kind, phase, unit, how often before in the step)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """A typical rank's own times of a step, stretched: launch and wait of each turn since the step's begin."""

    at: Mapping[Turn, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSource:
    """What a measured world size of a sharded run gives."""

    world_size: int
    step_ms: Measured
    bare_ms: Measured | None
    """One rank alone with the whole model; None: it was not measured."""
    own: OwnTimes
    moved_ns: Mapping[str, float]
    """By kind: time of a byte on the rank's link, from collectives that were sent alone, less their latency."""
    alpha_ns: float
    """Latency of a ring's hop."""


def own_times(records: TrialRecords) -> OwnTimes | None:
    """Mean over rounds and ranks; None where the arm over one rank, or the light probe, was not measured."""
    if not records.turns:
        return None
    light = records.by_rank(PROBE, detailed=False)
    both = {name: float(np.nanmean(light[name])) for name in ("forward", "compute")}
    turns = list(records.turns.values())
    names = turns[0].names
    same = [one for one in turns if one.names == names]
    alone = {name: float(np.mean([one.phases[name].mean() for one in same])) for name in both}
    stretch = {"forward": both["forward"] / alone["forward"], "backward": both["compute"] / alone["compute"]}
    at = np.mean([one.at.mean(axis=0) for one in same], axis=0)  # T x 2
    seen: Counter[tuple[str, str, int]] = Counter()
    found: dict[Turn, tuple[float, float]] = {}
    before = grown = 0.0
    for place in np.argsort(at[:, 1], kind="stable"):
        name = names[int(place)]
        turn = (*name, seen[name])
        seen[name] += 1
        launch, wait = (float(x) for x in at[place])
        factor = stretch[name[1]] if found else 1.0  # the first own time holds the optimizer and the input
        moved = grown + max(0.0, wait - before) * factor
        found[turn] = (min(moved, grown + (launch - before) * factor), moved)
        before, grown = max(before, wait), moved
    return OwnTimes(at=found)


def times_of_bytes(records: TrialRecords, alpha_ns: float) -> dict[str, float]:
    """By kind, from the arm that replays a step's own collectives one after the other."""
    spent: dict[str, list[float]] = {}
    moved: dict[str, float] = {}
    rounds = [times for times in records.replay.values() if len(times) == len(records.sent)]
    if not rounds:
        return {}
    for one, took in zip(records.sent, np.mean(rounds, axis=0), strict=True):
        spent.setdefault(one.kind, []).append(max(0.0, float(took) - one.hops * alpha_ns))
        moved[one.kind] = moved.get(one.kind, 0.0) + one.moved
    return {kind: sum(times) / moved[kind] for kind, times in spent.items() if moved[kind]}


def unit_sources(tables: Tables, plan: Plan, analysis: Analysis) -> tuple[UnitSource, ...]:
    """One for each measured world size above 1 that has all parts."""
    found = []
    points = {p.world_size: p for p in analysis.points}
    levels = {level.world_size: level for level in analysis.fabric.levels}
    for trial in plan.trials:
        n = trial.world_size
        point, level = points.get(n), levels.get(n)
        if n == 1 or point is None or point.step_ms is None or level is None or level.alpha_us is None:
            continue
        records = read_trial(of_launches(tables, counted(tables, plan, trial)), plan, trial)
        own, alpha_ns = own_times(records), max(0.0, level.alpha_us.value) * 1e3
        moved = times_of_bytes(records, alpha_ns)
        if own is None or not moved:
            continue
        if level.busbw_gbit_s is not None:  # of kinds that the run's own step does not send
            moved = {"all_reduce": 8 / level.busbw_gbit_s.value} | moved
        nominal = plan.nominal_bit_s(n) if plan.spec.topology.kind == "emulated" else None
        if nominal is not None:  # a shaper does not let data through faster
            moved = {kind: max(ns, 8e9 / nominal) for kind, ns in moved.items()}
        found.append(
            UnitSource(
                world_size=n,
                step_ms=point.step_ms,
                bare_ms=point.arms_ms.bare_one,
                own=own,
                moved_ns=moved,
                alpha_ns=alpha_ns,
            )
        )
    return tuple(found)


def step_ns(
    listed: Listed,
    own: OwnTimes,
    transfer_ns: Sequence[float],
    wires: Sequence[str],
    *,
    pace: float = 1.0,
) -> float:
    """The step of a rank. `transfer_ns`, `wires`: of each listed collective; `pace`: factor on own times."""
    count = len(listed.collectives)
    done, free = [0.0] * count, dict.fromkeys(wires, 0.0)
    turns, further = _turns(listed.collectives), _further(listed.collectives)
    resumed = before = 0.0
    for mark in listed.marks:
        k = mark.collective
        known = own.at.get(turns[k])
        at_alone = before if known is None else known[1 if mark.waits else 0]
        at = resumed + max(0.0, at_alone - before) * pace
        if mark.waits:
            resumed, before = max(at, done[k]), max(before, at_alone)
            continue
        reduced = further[k]
        begun = max(at, free[wires[k]], 0.0 if reduced is None else done[reduced])
        done[k] = free[wires[k]] = begun + transfer_ns[k]
    return resumed


def _turns(collectives: Sequence[ListedCollective]) -> list[Turn]:
    seen: Counter[tuple[str, str, int]] = Counter()
    found = []
    for one in collectives:
        name = (one.kind, one.phase, one.unit)
        found.append((*name, seen[name]))
        seen[name] += 1
    return found


def _further(collectives: Sequence[ListedCollective]) -> list[int | None]:
    """For each all-reduce over copies the reduce-scatter whose result it reduces further."""
    last: dict[int, int] = {}
    found: list[int | None] = []
    for k, one in enumerate(collectives):
        found.append(last.get(one.unit) if one.kind == "all_reduce" else None)
        if one.kind == "reduce_scatter":
            last[one.unit] = k
    return found
