"""A sharded step at a mesh that was not run: torch's own list of collectives, times of the run, links' curves.

What a rank does by itself is known from the arm over a mesh of one rank: when it comes to each unit's all-gather and
reduction (decompose.unit_turns), stretched to what the light probe measured with the other ranks. Where layers are
divided it is known from the detailed blocks: what lies between a rank's waits. What it sends, in which order and where
it waits, comes from the listing at the mesh in question (spec.listing). With own times o and transfers T,

    at(launch) = resumed + o       begun = max(at(launch), wire free, what it reduces further is done)
    done = begun + T               resumed = max(resumed + o, done)    at a wait

and the step is the last `resumed`, with what the rank has left to do. The prediction is this at the asked mesh over
this at the measured one, times the measured step. All ranks are taken to do alike: the latest of more ranks costs what
it cost among those measured.

Times in ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.decompose.trials import read_trial
from scaling.analysis.network.placed import groups_along, place
from scaling.analysis.predict.own_times import OwnTimes, own_times, turns_of
from scaling.analysis.quality.launches import counted, of_launches
from scaling.analysis.results import Analysis, Fabric, Measured, Point
from scaling.analysis.strategies import of_strategy
from scaling.records.tables import Tables
from scaling.spec.listing import Listed, ListedCollective
from scaling.spec.parallel import Mesh, Parallel
from scaling.spec.plan import Plan
from scaling.spec.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSource:
    """What a measured world size of a sharded strategy gives."""

    parallel: Parallel
    world_size: int
    step_ms: Measured
    bare_ms: Measured | None
    """What a rank's samples take one rank that has the whole model; None: it was not measured."""
    own: OwnTimes
    moved_ns: Mapping[tuple[str, bool], float]
    """By kind, and whether between hosts: time of a byte of the step's collectives, less their latency.

    Between hosts it is a byte on a host's link, within a host one on a rank's."""
    alpha_ns: Mapping[tuple[str, bool], float]
    """Latency of a hop, likewise."""

    @property
    def mesh(self) -> Mesh:
        """Its degrees."""
        return self.parallel.mesh(self.world_size)

    def link(self, kind: str, *, across: bool) -> tuple[float, float] | None:
        """Times of a byte and of a hop; of a kind that was not sent there the longest of others. None: nothing was."""
        there = [key for key in self.moved_ns if key[1] == across]
        if not there:
            return None
        key = (kind, across) if (kind, across) in there else max(there, key=lambda one: self.moved_ns[one])
        return self.moved_ns[key], self.alpha_ns[key]


Links = tuple[dict[tuple[str, bool], float], dict[tuple[str, bool], float]]
"""Times of a byte and of a hop, ns, as a UnitSource has them."""


def times_of_links(
    records: TrialRecords, mesh: Mesh, topology: Topology, hop_ns: float, least_ns: float
) -> Links:
    """What a step's collectives take a byte and a hop.

    They are from the detailed blocks, where they move data as they do in the step; the median over rounds. `hop_ns`: of
    a ring over all ranks. A hop takes no longer than the shortest collective took for each of its own. `least_ns`: a
    byte on a host's link takes no less, so what it would be below that is not latency.
    """
    rounds = [
        times for times in (records.on_wire or records.replay).values() if len(times) == len(records.sent)
    ]
    if not rounds:
        return {}, {}
    took = np.median(rounds, axis=0)
    of: dict[tuple[str, bool], list[tuple[float, float, int]]] = {}
    for one, ns in zip(records.sent, took, strict=True):
        at = place(groups_along(mesh, one.axis, one.ranks), topology)
        load = one.moved * (at.carried(one.kind, topology.backend) if at.across else 1.0)
        of.setdefault((one.kind, at.across), []).append((float(ns), load, one.hops))
    moved, alpha = {}, {}
    for key, rows in of.items():
        time, size, hops = (float(sum(column)) for column in zip(*rows, strict=True))
        latency = min(hop_ns, *(ns / count for ns, _, count in rows))
        each = max(0.0, (time - hops * latency) / size)
        if key[1] and each < least_ns:
            each, latency = least_ns, max(0.0, (time - size * least_ns) / hops)
        moved[key], alpha[key] = each, latency
    return moved, alpha


def unit_sources(tables: Tables, plan: Plan, analysis: Analysis) -> tuple[UnitSource, ...]:
    """One for each sharded strategy and measured world size above 1 that has all parts."""
    found: list[UnitSource] = []
    for k, spec in enumerate(plan.spec.strategies):
        if spec.parallel.sharded:
            points = analysis.strategies[k].points if analysis.strategies else analysis.points
            found += _of_strategy(*of_strategy(tables, plan, k), points, analysis.fabric)
    return tuple(found)


def _of_strategy(
    tables: Tables, plan: Plan, measured: Sequence[Point], fabric: Fabric
) -> Iterator[UnitSource]:
    points = {p.world_size: p for p in measured}
    levels = {level.world_size: level for level in fabric.levels}
    topology, parallel = plan.spec.topology, plan.spec.parallel
    for trial in plan.trials:
        n = trial.world_size
        point, level = points.get(n), levels.get(n)
        if n == 1 or point is None or point.step_ms is None or level is None or level.alpha_us is None:
            continue
        mesh, across = parallel.mesh(n), topology.hosts_of(n) > 1
        records = read_trial(of_launches(tables, counted(tables, plan, trial)), plan, trial)
        own = own_times(records, divided=mesh.tensor > 1)
        hop_ns = max(0.0, level.alpha_us.value) * 1e3
        nominal = plan.nominal_bit_s(n) if topology.kind == "emulated" else None
        least_ns = 0.0 if nominal is None else 8e9 / nominal  # a shaper does not let data through faster
        moved, alpha = times_of_links(records, mesh, topology, hop_ns, least_ns)
        if own is None or not moved:
            continue
        ring = ("all_reduce", across)
        if level.busbw_gbit_s is not None and ring not in moved:  # the run's own step does not send it
            moved[ring], alpha[ring] = max(least_ns, 8 / level.busbw_gbit_s.value), hop_ns
        yield UnitSource(
            parallel=parallel,
            world_size=n,
            step_ms=point.step_ms,
            bare_ms=alone_ms(point, plan.spec.mode, mesh.tensor),
            own=own,
            moved_ns=moved,
            alpha_ns=alpha,
        )


def alone_ms(point: Point, mode: str, tensor: int) -> Measured | None:
    """What a rank's samples take one rank with the whole model, ms; the `tensor` ranks of a group have the same.

    In strong scaling it is the part of the whole batch that was measured on one rank, from efficiency, which is over
    that. `arms_ms.bare_one` is a rank with a part of the batch, which takes longer than its share.
    """
    if mode == "weak" or point.arms_ms.bare_one is None:
        return point.arms_ms.bare_one
    over_one_rank = point.loss is not None
    if not over_one_rank or point.efficiency is None or point.step_ms is None:
        return None
    return Measured(tensor * point.efficiency.value * point.step_ms.value)


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
    turns, further = turns_of(listed.collectives), _further(listed.collectives)
    resumed = before = 0.0
    for mark in listed.marks:
        k = mark.collective
        known = own.find(turns[k])
        at_alone = before if known is None else known[1 if mark.waits else 0]
        at = resumed + max(0.0, at_alone - before) * pace
        if mark.waits:
            resumed, before = max(at, done[k]), max(before, at_alone)
            continue
        reduced = further[k]
        begun = max(at, free[wires[k]], 0.0 if reduced is None else done[reduced])
        done[k] = free[wires[k]] = begun + transfer_ns[k]
    return resumed + max(0.0, own.end - before) * pace


def _further(collectives: Sequence[ListedCollective]) -> list[int | None]:
    """For each all-reduce over copies the reduce-scatter whose result it reduces further."""
    last: dict[int, int] = {}
    found: list[int | None] = []
    for k, one in enumerate(collectives):
        copies = (one.kind, one.axis) == ("all_reduce", "replicate")
        found.append(last.get(one.unit) if copies else None)
        if one.kind == "reduce_scatter":
            last[one.unit] = k
    return found
