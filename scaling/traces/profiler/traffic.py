"""Bandwidths of collectives, the traffic of a step, and how communication slows the compute beside it.

The late rank, from the time that the others wait for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from scaling.analysis.results import Bucket, Comm, Straggler
from scaling.analysis.results.measured import Measured
from scaling.analysis.results.traces import Dilation, TracedCollective, TracedKind
from scaling.traces.profiler.columns import Ints, merged
from scaling.traces.profiler.decompose import KindColumns
from scaling.traces.profiler.jobs import Floats, Table, TracedRanks, measured
from scaling.traces.profiler.match import Instance, Matched

FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}
"""busbw / algbw (nccl-tests, doc/PERFORMANCE.md)."""


def collectives(matched: Matched) -> tuple[TracedCollective, ...]:
    """Each collective, group and size, the longest first."""
    kinds: dict[tuple[str, str, int, int | None], list[int]] = defaultdict(list)
    for index, one in enumerate(matched.instances):
        kinds[one.collective, one.group, len(one.ranks), one.bytes].append(index)
    rows = []
    for (collective, group, size, nbytes), indices in kinds.items():
        of = [matched.instances[i] for i in indices]
        time = measured(float((i.end - i.begin).mean()) / 1e3 for i in of)
        transfer = measured(i.transfer / 1e3 for i in of)
        skew = measured(float(i.wait.mean()) / 1e3 for i in of)
        assert time is not None
        assert transfer is not None
        assert skew is not None
        late, often = Counter(i.late for i in of).most_common(1)[0]
        algbw = _rate(transfer, nbytes, 1.0)
        factor = FACTORS[collective](size) if collective in FACTORS and size > 1 else None
        rows.append(
            TracedCollective(
                collective=collective,
                group=group,
                group_size=size,
                bytes=nbytes,
                count=len(of),
                time_us=time,
                transfer_us=transfer,
                skew_us=skew,
                algbw_gbit_s=algbw,
                busbw_gbit_s=None if factor is None else _rate(transfer, nbytes, factor),
                late_rank=late,
                late_share=often / len(of),
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.time_us.value * r.count))


def kinds(job: TracedRanks) -> tuple[TracedKind, ...]:
    """All ranks together, over the windows that all have."""
    windows = min(len(file.parts.labels) for file in job.ranks.values())
    found: dict[tuple[str, str, int | None], list[KindColumns]] = defaultdict(list)
    for file in job.ranks.values():
        described = list(file.described.values())
        for (collective, group), columns in file.parts.kinds.items():
            members = file.groups.get(group)
            size = columns.group_size or (len(members) if members else None)
            said = file.described.get(group, "")
            name = said if described.count(said) == 1 and said else group
            found[collective, name, size].append(columns)
    made = [_kind(*key, rows, windows) for key, rows in found.items()]
    return tuple(sorted(made, key=lambda k: -k.busy_ms.value))


def _kind(collective: str, group: str, size: int | None, rows: list[KindColumns], windows: int) -> TracedKind:
    def mean(columns: Sequence[Ints], scale: float) -> Measured:
        found = measured(np.mean([c[:windows] for c in columns], axis=0) / scale)
        assert found is not None
        return found

    busy, exposed = [r.busy for r in rows], [r.exposed for r in rows]
    calls, spent, bare = mean([r.calls for r in rows], 1.0), mean(busy, 1e6), mean(exposed, 1e6)
    hidden = mean([b - e for b, e in zip(busy, exposed, strict=True)], 1e6)
    sizes = [r.bytes for r in rows]
    known = [s[:windows] for s in sizes if s is not None]
    return TracedKind(
        collective=collective,
        group=group,
        group_size=size,
        calls=calls,
        bytes=round(float(np.mean(known))) if len(known) == len(sizes) else None,
        busy_ms=spent,
        exposed_ms=bare,
        hidden_ms=hidden,
    )


def _rate(transfer: Measured, nbytes: int | None, factor: float) -> Measured | None:
    """Gbit/s of `nbytes` in `transfer` us."""
    if nbytes is None or transfer.value <= 0:
        return None
    return factor * nbytes * 8 / transfer / 1e3


def _busy_ns(instances: Sequence[Instance], ranks: Sequence[int]) -> int:
    """Sum over ranks of the time on which each moved data. Transfers at once share the rank's link and count once."""
    return sum(_busy_of([i for i in instances if rank in i.ranks]) for rank in ranks)


def _busy_of(instances: Sequence[Instance]) -> int:
    released = np.array([i.released for i in instances], dtype=np.int64)
    transfer = np.array([i.transfer for i in instances], dtype=np.int64)
    return int(merged(released, released + transfer).length)


def _over_links(reduced: Instance) -> float:
    """Bytes of an all-reduce over the links of all its ranks together."""
    n = len(reduced.ranks)
    return 2.0 * (n - 1) * (reduced.bytes or 0)  # n times the factor


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
    by_step: dict[int, list[int]] = defaultdict(list)
    for index, one in enumerate(reduces):
        by_step[one.step].append(index)
    per_step = list(by_step.values())
    alike = len({tuple(reduces[i].bytes for i in row) for row in per_step}) == 1
    rates, hidden = [], []
    for row in per_step:
        moved = _busy_ns([reduces[i] for i in row], table.ranks)
        if moved:  # groups without a common rank share no link, so the rate is that of a rank
            rates.append(sum(_over_links(reduces[i]) for i in row) * 8 / moved)
    if "moved" in table.columns:
        in_step: dict[int, list[Instance]] = defaultdict(list)
        for one in shown:
            in_step[one.step].append(one)
        for k in range(steps):
            ms = _busy_ns(in_step[k], table.ranks) / 1e6
            if ms:
                hidden.append(1 - min(float(table.columns["moved"][:, k].sum()) / ms, 1.0))
    buckets = tuple(
        Bucket(
            bytes=reduces[per_step[0][k]].bytes or 0,
            ready_ms=None,
            transfer_ms=measured(reduces[row[k]].transfer / 1e6 for row in per_step),
            skew_ms=measured(float(reduces[row[k]].wait.mean()) / 1e6 for row in per_step),
        )
        for k in range(len(per_step[0]) if alike else 0)
    )
    total = sum((i.bytes or 0) * len(i.ranks) for i in reduces)
    return Comm(
        bytes_per_step=round(total / len(per_step) / len(table.ranks)),
        buckets=buckets,
        busbw_gbit_s=measured(rates),
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
