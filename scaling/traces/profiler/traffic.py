"""Bandwidths of collectives, the traffic of a step, compute that communication slows, and the late rank."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from scaling.analysis.network.links import SHARED, WHOLE, bus_factor
from scaling.analysis.results import Bucket, Comm, Straggler
from scaling.analysis.results.measured import Measured
from scaling.analysis.results.traces import Dilation, TracedCollective, TracedKind
from scaling.traces.profiler.columns import Floats, Ints, merged
from scaling.traces.profiler.decompose import KindColumns
from scaling.traces.profiler.jobs import Table, TracedRanks, mean, measured
from scaling.traces.profiler.match import Instance, Matched


def collectives(matched: Matched) -> tuple[TracedCollective, ...]:
    """Each collective, group and size, the longest first."""
    kinds: dict[tuple[str, str, int, int | None], list[Instance]] = defaultdict(list)
    for instance in matched.instances:
        kinds[instance.collective, instance.group, len(instance.ranks), instance.bytes].append(instance)
    rows = []
    for (collective, group, size, nbytes), instances in kinds.items():
        transfer = mean(i.transfer / 1e3 for i in instances)
        late, often = Counter(i.late for i in instances).most_common(1)[0]
        algbw, busbw = rates(transfer, nbytes, size, collective)
        rows.append(
            TracedCollective(
                collective=collective,
                group=group,
                group_size=size,
                bytes=nbytes,
                count=len(instances),
                time_us=mean(float((i.end - i.begin).mean()) / 1e3 for i in instances),
                transfer_us=transfer,
                skew_us=mean(float(i.wait.mean()) / 1e3 for i in instances),
                algbw_gbit_s=algbw,
                busbw_gbit_s=busbw,
                late_rank=late,
                late_share=often / len(instances),
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.time_us.value * r.count))


def rates(
    transfer: Measured, nbytes: int | None, ranks: int, collective: str
) -> tuple[Measured | None, Measured | None]:
    """algbw and busbw in Gbit/s of `nbytes` in `transfer` us; None where they cannot be known."""
    if nbytes is None or transfer.value <= 0:
        return None, None
    algbw = nbytes * 8 / transfer / 1e3
    if collective not in WHOLE and (collective not in SHARED or ranks < 2):
        return algbw, None
    return algbw, bus_factor(ranks, collective) * nbytes * 8 / transfer / 1e3


def kinds(job: TracedRanks) -> tuple[TracedKind, ...]:
    """All ranks together, over the windows that all have."""
    windows = min(len(file.parts.labels) for file in job.ranks.values())
    by_kind: dict[tuple[str, str, int | None], list[KindColumns]] = defaultdict(list)
    for file in job.ranks.values():
        described = list(file.described.values())
        for (collective, group), columns in file.parts.kinds.items():
            members = file.groups.get(group)
            size = columns.group_size or (len(members) if members else None)
            purpose = file.described.get(group, "")
            name = purpose if described.count(purpose) == 1 and purpose else group
            by_kind[collective, name, size].append(columns)
    traced = (_kind(*key, rows, windows) for key, rows in by_kind.items())
    return tuple(sorted(traced, key=lambda k: -k.busy_ms.value))


def _kind(collective: str, group: str, size: int | None, rows: list[KindColumns], windows: int) -> TracedKind:
    def over_ranks(columns: Sequence[Ints], scale: float) -> Measured:
        return mean(np.mean([c[:windows] for c in columns], axis=0) / scale)

    sizes = [r.bytes[:windows] for r in rows if r.bytes is not None]
    return TracedKind(
        collective=collective,
        group=group,
        group_size=size,
        calls=over_ranks([r.calls for r in rows], 1.0),
        bytes=round(float(np.mean(sizes))) if len(sizes) == len(rows) else None,
        busy_ms=over_ranks([r.busy for r in rows], 1e6),
        exposed_ms=over_ranks([r.exposed for r in rows], 1e6),
        hidden_ms=over_ranks([r.busy - r.exposed for r in rows], 1e6),
    )


def _busy_ns(instances: Sequence[Instance], ranks: Sequence[int]) -> int:
    """Sum over ranks of the time on which each moved data. Transfers at once share the rank's link and count once."""

    def busy(mine: Sequence[Instance]) -> int:
        begin = np.array([i.released for i in mine], dtype=np.int64)
        return int(merged(begin, begin + np.array([i.transfer for i in mine], dtype=np.int64)).length)

    return sum(busy([i for i in instances if rank in i.ranks]) for rank in ranks)


def dilation(job: TracedRanks) -> Dilation | None:
    """Mean of beside / alone over kernels seen both ways, weighted by their time alone."""
    alone, beside, kernels, instances = 0.0, 0.0, 0, 0
    for file in job.ranks.values():
        for n_alone, t_alone, n_beside, t_beside in file.parts.stretched.values():
            alone += t_alone / n_alone * n_beside
            beside += t_beside
            kernels, instances = kernels + 1, instances + n_beside
    if not alone:
        return None
    steps = sum(len(f.parts.labels) for f in job.ranks.values())
    return Dilation(
        ratio=Measured(beside / alone, n=instances),
        kernels=kernels,
        cost_ms=Measured((beside - alone) / 1e6 / steps, n=instances),
    )


def traffic(matched: Matched, table: Table) -> Comm | None:
    """Traffic of a step; busbw is that of the gradients' all-reduces alone, as in a run."""
    steps = table.columns["window"].shape[1]
    shown = [i for i in matched.instances if 0 <= i.step < steps]
    reduces = [i for i in shown if i.collective == "all_reduce" and i.bytes]
    if not reduces:
        return None
    per_step = [list(row) for _, row in itertools.groupby(reduces, lambda i: i.step)]  # they are in order
    alike = len({tuple(i.bytes for i in row) for row in per_step}) == 1
    busbw, hidden = [], []
    for row in per_step:
        moved = _busy_ns(row, table.ranks)
        if moved:  # groups without a common rank share no link, so the rate is that of a rank
            # An all-reduce moves n times the factor 2 (n-1)/n of its bytes over the links of its ranks together.
            over_links = sum(2.0 * (len(i.ranks) - 1) * (i.bytes or 0) for i in row)
            busbw.append(over_links * 8 / moved)
    if "moved" in table.columns:
        for k, instances in itertools.groupby(shown, lambda i: i.step):
            ms = _busy_ns(list(instances), table.ranks) / 1e6
            if ms:
                hidden.append(1 - min(float(table.columns["moved"][:, k].sum()) / ms, 1.0))
    buckets = tuple(
        Bucket(
            bytes=same[0].bytes or 0,
            ready_ms=None,
            transfer_ms=measured(i.transfer / 1e6 for i in same),
            skew_ms=measured(float(i.wait.mean()) / 1e6 for i in same),
        )
        for same in (zip(*per_step, strict=True) if alike else ())
    )
    total = sum((i.bytes or 0) * len(i.ranks) for i in reduces)
    return Comm(
        bytes_per_step=round(total / len(per_step) / len(table.ranks)),
        buckets=buckets,
        busbw_gbit_s=measured(busbw),
        curve_share=None,
        nominal_share=None,
        hidden_share=measured(hidden),
    )


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
    shown = [i for i in matched.instances if 0 <= i.step < steps]
    for i, cost in zip(shown, _exposed_waits(shown, job), strict=True):
        blamed[i.late][i.step] += cost / 1e6
        skew[i.late][i.step] += float(i.wait.sum()) / max(len(i.ranks) - 1, 1) / 1e6
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
    for k, instance in enumerate(instances):
        for rank, row, wait in zip(instance.ranks, instance.rows, instance.wait.tolist(), strict=True):
            if rank != instance.late:
                waits[rank].append((k, row, wait))
    total = np.zeros(len(instances))
    for rank, entries in waits.items():
        at, rows, wait = np.array(entries).T
        parts = job.ranks[rank].parts
        begin = parts.collectives.begin[rows]
        total[at] += parts.exposed.overlap(begin, begin + wait)
    total /= [max(len(instance.ranks) - 1, 1) for instance in instances]
    return total


def _phase(table: Table, rank: int) -> str:
    """The part of the step in which a rank takes longer than the others by most."""
    at = table.ranks.index(rank)
    others = [i for i in range(len(table.ranks)) if i != at]
    named = ("input", "forward", "backward", "optimizer")
    groups: dict[str, tuple[str, ...]] = {n: (n,) for n in named if n in table.columns}
    if "forward" not in groups:
        groups["compute"] = ("compute",)
    groups["host"] = ("host", "launch", "idle", "copies")
    excess = {
        phase: sum(float(table.columns[n][at].mean()) for n in names)
        - sum(float(table.columns[n][others].mean()) for n in names)
        for phase, names in groups.items()
    }
    return max(excess, key=lambda p: excess[p])
