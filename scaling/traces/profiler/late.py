"""The late rank, from the time that the others wait for it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from scaling.analysis.results import Straggler
from scaling.analysis.results.measured import Measured
from scaling.traces.profiler.jobs import TracedRanks
from scaling.traces.profiler.match import Instance, Matched
from scaling.traces.profiler.table import Floats, Table, measured

NOTABLE_LATE = 0.01
"""A rank is called late when the others wait for it more than this share of the step."""


def straggler(job: TracedRanks, matched: Matched, table: Table, step: Measured) -> Straggler | None:
    """The rank for which the others wait longest, where that is a notable part of the step.

    The cost sums, over the collectives at which this rank came last, the exposed part of the other ranks' mean wait.
    It is an upper bound: unlike the analysis of a run, it does not replay the step without the late rank.
    """
    if "waited" not in table.columns or len(job.ranks) < 2:
        return None
    steps = table.columns["window"].shape[1]
    blamed: dict[int, Floats] = defaultdict(lambda: np.zeros(steps))
    skew: dict[int, Floats] = defaultdict(lambda: np.zeros(steps))
    shown = [one for one in matched.instances if 0 <= one.step < steps]
    for one, cost in zip(shown, _exposed_waits(shown, job), strict=True):
        blamed[one.late][one.step] += cost / 1e6
        skew[one.late][one.step] += float(one.wait.sum()) / max(len(one.ranks) - 1, 1) / 1e6
    if not blamed:
        return None
    rank = max(blamed, key=lambda r: float(blamed[r].sum()))
    cost, whole = measured(blamed[rank]), measured(skew[rank])
    floor = NOTABLE_LATE * step.value
    if cost is None or whole is None or min(cost.value, cost.least) < floor:
        return None
    return Straggler(rank=rank, phase=_phase(table, rank), by_itself=None, cost_ms=cost, skew_ms=whole)


def _exposed_waits(instances: list[Instance], job: TracedRanks) -> Floats:
    """For each collective, the exposed part of the other ranks' wait for the late one, mean over them, ns."""
    waits: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for k, one in enumerate(instances):
        for rank, row, wait in zip(one.ranks, one.rows, one.wait.tolist(), strict=True):
            if rank != one.late:
                waits[rank].append((k, row, wait))
    total = np.zeros(len(instances))
    for rank, told in waits.items():
        at, rows, wait = np.array(told).T
        own = job.ranks[rank].parts
        begin = own.collectives.begin[rows]
        total[at] += own.exposed.overlap(begin, begin + wait)
    total /= [max(len(one.ranks) - 1, 1) for one in instances]
    return total


def _phase(table: Table, rank: int) -> str:
    """The part of the step in which a rank takes longer than the others by most."""
    at = table.ranks.index(rank)
    others = [i for i in range(len(table.ranks)) if i != at]
    groups: dict[str, tuple[str, ...]] = {n: (n,) for n in ("input", "forward", "backward", "optimizer")}
    groups["host"] = ("host", "launch", "idle", "copies")
    excess = {}
    for phase, names in groups.items():
        own = sum(float(table.columns[n][at].mean()) for n in names)
        theirs = sum(float(table.columns[n][others].mean()) for n in names)
        excess[phase] = own - theirs
    return max(excess, key=lambda p: excess[p])
