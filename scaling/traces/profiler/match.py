"""Match collectives over ranks, to separate waiting for the last rank from moving data.

As in a run (docs/method.md): an instance can move data once its last rank has begun, R, and is over when the last
rank has ended, D; its transfer is [R, D], and what a rank spends in it before R is its wait. Instances are
matched by step, group, and their order in the group (or the sequence number, where the trace has it), and only
where every rank of the group shows the same collective.

Ranks of one host share a clock. Where hosts differ or are unknown, each rank's clock is shifted so that the median of
its ends agrees with the others', since a synchronising collective ends on all ranks at about the same time. `spread`,
how far the ends still lie apart, shows how good this is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scaling.traces.profiler import signs
from scaling.traces.profiler.columns import Floats, Ints, Spans, common, merged
from scaling.traces.profiler.decompose import Collectives, whole_bytes

UNSYNCHRONISED = ("send_recv", "broadcast", "scatter", "gather", "reduce", signs.UNKNOWN)
"""A rank may leave these before another has begun, so there is no instant at which all have begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One collective on all its ranks; times in ns on the common clock."""

    step: int
    """Index among the steps that all ranks show; -1: not among them."""
    collective: str
    group: str
    bytes: int | None
    ranks: tuple[int, ...]
    rows: tuple[int, ...]
    """Index in each rank's columns."""
    begin: Ints
    end: Ints
    released: int
    """R: the last rank has begun."""
    transfer: int
    """D - R."""
    wait: Ints
    """Time of each rank in it before R."""
    late: int
    """The rank that came last."""
    spread: int
    """How far apart the ranks' ends lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """All instances that were found on every rank, in the order of their steps, and why others were not."""

    instances: tuple[Instance, ...]
    unmatched: tuple[str, ...]
    """One line for each reason why collectives could not be matched."""
    released: Mapping[int, Floats]
    """For each rank and each of its collectives, R on the rank's own clock, ns; NaN where it was not matched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """The origin of a rank's times, and the host whose clock it is."""

    origin_ns: int
    host: str | None


def shared_steps(labels: Collection[Sequence[str]]) -> list[str]:
    """Steps that all ranks show, in order; `labels`: those of each."""
    common = set.intersection(*map(set, labels))
    return [step for step in next(iter(labels)) if step in common]


def match(
    ranks: Mapping[int, Collectives],
    world_size: int,
    labels: Mapping[int, tuple[str, ...]],
    groups: Mapping[int, Mapping[str, tuple[int, ...]]],
    clocks: Mapping[int, RankClock],
) -> Matched:
    """Match the collectives of all ranks; `labels` names their windows, `groups` members as each rank lists them.

    Older versions of torch give several groups one name (0, 2 and 1, 3), so their members distinguish them.
    """
    rows: dict[tuple[str, tuple[int, ...] | None, str], dict[int, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rank, calls in ranks.items():
        listed = {name: _listed(groups, rank, name) for name in {sent.group for sent in calls.sent}}
        for row, sent in enumerate(calls.sent):
            step = int(calls.step[row])
            if 0 <= step < len(labels[rank]):
                rows[sent.group, listed[sent.group], labels[rank][step]][rank].append(row)
    blocks: list[_Block] = []
    reasons: dict[str, int] = defaultdict(int)
    order = {label: k for k, label in enumerate(shared_steps(labels.values()))}
    for (group, listed_ranks, label), members in rows.items():
        expected = listed_ranks or _members(members, ranks, world_size)
        if expected is None:
            reasons["the members of their group are not known"] += max(map(len, members.values()))
            continue
        absent = [r for r in expected if r not in members]
        many = max(map(len, members.values()))
        if absent:
            reasons[f"rank {', '.join(map(str, absent[:8]))} does not show them"] += many
            continue
        lined = _lined_up({r: members[r] for r in expected}, ranks)
        if lined is None:
            reasons["the ranks do not show the same collectives in the same order"] += many
            continue
        places = []
        for place in lined:
            collective = ranks[expected[0]].sent[place[0]].collective
            if collective in UNSYNCHRONISED:
                reasons[f"{collective} does not synchronise its ranks"] += 1
            else:
                places.append(place)
        if places:
            blocks.append(_block(order.get(label, -1), group, expected, places, ranks))
    shift = _shifts(blocks, clocks)
    released = {rank: np.full(len(calls.sent), np.nan) for rank, calls in ranks.items()}
    instances: list[Instance] = []
    for block in blocks:
        matched = _instances(block, np.array([shift[r] for r in block.ranks]))
        instances += matched
        at = np.array([instance.released for instance in matched])
        for k, rank in enumerate(block.ranks):
            released[rank][block.rows[:, k]] = at - shift[rank]
    unmatched = tuple(
        f"{count} collectives: waiting cannot be separated from transfer: {why}"
        for why, count in reasons.items()
    )
    instances.sort(key=lambda i: (i.step, i.rows))
    return Matched(instances=tuple(instances), unmatched=unmatched, released=released)


def _listed(
    groups: Mapping[int, Mapping[str, tuple[int, ...]]], rank: int, name: str
) -> tuple[int, ...] | None:
    """Members of a rank's group by its own list, else by the only list of other ranks that contains it."""
    mine = groups.get(rank, {}).get(name)
    if mine:
        return mine
    others = {members for lists in groups.values() if (members := lists.get(name)) and rank in members}
    return others.pop() if len(others) == 1 else None


def _members(
    members: Mapping[int, list[int]], ranks: Mapping[int, Collectives], world_size: int
) -> tuple[int, ...] | None:
    """Members of a group that no trace lists: its users, if so many, or all ranks; None for another number of ranks."""
    rank, rows = next(iter(members.items()))
    size = ranks[rank].sent[rows[0]].group_size
    if size == len(members):
        return tuple(sorted(members))
    return tuple(range(world_size)) if size in (None, world_size) else None


def _lined_up(
    members: Mapping[int, list[int]], ranks: Mapping[int, Collectives]
) -> list[tuple[int, ...]] | None:
    """Rows of each instance, one a rank; None where ranks disagree."""
    ordered = {r: [(ranks[r].sent[i].seq, i) for i in rows] for r, rows in members.items()}
    if all(seq is not None for rows in ordered.values() for seq, _ in rows):
        ordered = {r: sorted(rows, key=lambda row: row[0] or 0) for r, rows in ordered.items()}
    if len({len(rows) for rows in ordered.values()}) != 1:
        return None
    places = list(zip(*([i for _, i in rows] for rows in ordered.values()), strict=True))
    for place in places:
        sent = [ranks[r].sent[row] for r, row in zip(ordered, place, strict=True)]
        if len({(s.collective, s.seq) for s in sent}) != 1:
            return None
    return places


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """The instances of one group in one step; matrices of instances x ranks."""

    step: int
    group: str
    ranks: tuple[int, ...]
    sent: list[tuple[str, int | None]]
    """Collective and size of each instance."""
    rows: Ints
    begin: Ints
    end: Ints


def _block(
    step: int,
    group: str,
    expected: tuple[int, ...],
    places: list[tuple[int, ...]],
    ranks: Mapping[int, Collectives],
) -> _Block:
    sent = []
    for place in places:
        sizes = {whole_bytes(ranks[r].sent[i], len(expected)) for r, i in zip(expected, place, strict=True)}
        # Ranks can send different sizes (all_to_all of ragged tables): there is no single size then.
        size = sizes.pop() if len(sizes) == 1 else None
        sent.append((ranks[expected[0]].sent[place[0]].collective, size))
    rows = np.array(places)
    begin, end = (
        np.stack([getattr(ranks[r], name)[rows[:, k]] for k, r in enumerate(expected)], axis=1)
        for name in ("begin", "end")
    )
    return _Block(step=step, group=group, ranks=expected, sent=sent, rows=rows, begin=begin, end=end)


def _shifts(blocks: list[_Block], clocks: Mapping[int, RankClock]) -> dict[int, int]:
    """The shift of each rank's times to a common clock, ns."""
    shift = {rank: clock.origin_ns for rank, clock in clocks.items()}
    hosts = {clock.host for clock in clocks.values()}
    if len(hosts) == 1 and None not in hosts:
        return shift
    apart: dict[int, list[Floats]] = defaultdict(list)
    for block in blocks:
        ends = block.end + np.array([shift[r] for r in block.ranks])
        beside = ends - np.median(ends, axis=1, keepdims=True)
        for k, rank in enumerate(block.ranks):
            apart[rank].append(beside[:, k])
    return {
        rank: at - round(float(np.median(np.concatenate(apart[rank])))) if rank in apart else at
        for rank, at in shift.items()
    }


def _instances(block: _Block, shift: Ints) -> list[Instance]:
    begin, end = block.begin + shift, block.end + shift
    released, done = begin.max(axis=1), end.max(axis=1)
    transfer, spread = np.maximum(done - released, 0), done - end.min(axis=1)
    wait = np.clip(released[:, None] - begin, 0, end - begin)
    late = begin.argmax(axis=1)
    return [
        Instance(
            step=block.step,
            collective=collective,
            group=block.group,
            bytes=size,
            ranks=block.ranks,
            rows=tuple(block.rows[k].tolist()),
            begin=begin[k],
            end=end[k],
            released=int(released[k]),
            transfer=int(transfer[k]),
            wait=wait[k],
            late=block.ranks[late[k]],
            spread=int(spread[k]),
        )
        for k, (collective, size) in enumerate(block.sent)
    ]


def moving(calls: Collectives, released: Floats) -> Spans:
    """Instants on which a matched collective of this rank moves data: every rank has begun it."""
    matched = np.isfinite(released)
    begin = np.maximum(calls.begin[matched], released[matched].astype(np.int64))
    return merged(begin, calls.end[matched])


def split(exposed: Spans, calls: Collectives, released: Floats, borders: Ints) -> tuple[Ints, Ints]:
    """(transfer, wait) of the exposed communication in each window, ns.

    An instant on which any collective moves data is transfer. Complete only where every collective was matched.
    """
    moved = common(exposed, moving(calls, released)).within(borders)
    return moved, exposed.within(borders) - moved
