"""Compare the flight recorder's dumps of all ranks: which rank stands where, and where they part.

Ranks are matched by group and number of the collective, never by position: groups differ from rank to rank, and each
ring may have lost its beginning. Up to the first number at which the ranks differ, all of them did the same, so what
usually follows shows which rank left the way.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from scaling.traces.profiler.signs import collective_of
from scaling.traces.recorders.flight import Dump, Entry

EQUAL_SIZES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "barrier")
"""Every rank gives the same shape to these; others may be ragged, or have a list on one rank only."""
LATE_NS = 1_000_000_000
"""A rank that issues a collective this much after the first one is named: other waits are a step's own."""
CONTEXT = 64
"""Collectives before a place that are compared to know what usually follows."""

Signature = tuple[str, object, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """What a rank was in."""

    rank: int
    issued: int
    """Entries of its dump."""
    waiting_in: Entry | None
    """The oldest collective that it has issued and that has not ended."""
    last: Entry | None
    """The last one that it has issued."""
    lost: int
    """Older entries that the ring has overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Ranks that do not do what the others do."""

    what: str
    """`missing`: has not issued it; `skipped`: left it out and went on; `size`, `dtype` or `order`: issued another one;
    `late`: issued it long after the others."""
    group: str
    ranks: tuple[int, ...]
    seq: int
    collective: str
    """What the others issued."""
    instead: str | None
    """What these ranks issued under that number; None where they issued nothing."""
    others: tuple[int, ...]
    seconds: float | None
    """`missing`: from the first issue by another rank to the last record of any; `late`: after the first rank. By the
    hosts' wall clocks."""
    line: str
    """The line of the program that issued it, where the dumps have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """All ranks together."""

    stands: tuple[Stand, ...]
    faults: tuple[Fault, ...]
    missing_ranks: tuple[int, ...]
    """Ranks that groups list and that have no dump."""
    compared: int
    """Collectives that the dumps of two ranks or more hold."""


def compare(dumps: Mapping[int, Dump]) -> Standing:
    """Compare the dumps, by rank."""
    end_ns = max((e.created_ns for d in dumps.values() for e in d.entries), default=0)
    groups = _groups(dumps)
    faults = [fault for group in groups for fault in _faults(group, end_ns)]
    order = {"size": 0, "dtype": 0, "order": 0, "skipped": 0, "missing": 1, "late": 2}
    expected = {r for d in dumps.values() for members in d.members.values() for r in members}
    return Standing(
        stands=tuple(_stand(rank, dumps[rank]) for rank in sorted(dumps)),
        faults=tuple(sorted(faults, key=lambda f: (order[f.what], f.group, f.seq))),
        missing_ranks=tuple(sorted(expected - dumps.keys())),
        compared=sum(many > 1 for group in groups for many in group.dumps_of().values()),
    )


def _stand(rank: int, dump: Dump) -> Stand:
    # Batched sends and receives stay "scheduled" for ever (pytorch issue 137969).
    open_ = [e for e in dump.entries if not e.done and not e.p2p]
    return Stand(
        rank=rank,
        issued=len(dump.entries),
        waiting_in=open_[0] if open_ else None,
        last=dump.entries[-1] if dump.entries else None,
        lost=_lost(dump),
    )


def _lost(dump: Dump) -> int:
    return dump.entries[0].record if dump.entries else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """One group's collectives: for each rank, entries by number. Coalesced ones share a number."""

    name: str
    by_rank: dict[int, dict[int, list[Entry]]]

    def firsts(self) -> dict[int, int]:
        """The first number that each rank's ring still has; 0 for a rank that has issued none."""
        return {rank: min(by_seq, default=0) for rank, by_seq in self.by_rank.items()}

    def dumps_of(self) -> Counter[int]:
        """How many ranks' dumps hold each number."""
        return Counter(seq for by_seq in self.by_rank.values() for seq in by_seq)


def _groups(dumps: Mapping[int, Dump]) -> list[_Group]:
    found: dict[tuple[str, tuple[int, ...] | None], _Group] = {}
    for rank, dump in dumps.items():
        for entry in dump.entries:
            if entry.p2p:
                continue
            members = dump.members.get(entry.group)
            named = entry.described or entry.group
            whole = f"{named} ({entry.group})" if entry.group and entry.group != named else named
            group = found.setdefault(
                (entry.group, members), _Group(name=whole or "its only group", by_rank={})
            )
            group.by_rank.setdefault(rank, defaultdict(list))[entry.seq].append(entry)
    for (_, members), group in found.items():
        everyone = members or (tuple(dumps) if group.name.startswith("default_pg") else ())
        for rank in everyone:
            if rank in dumps and not _lost(
                dumps[rank]
            ):  # a ring that lost some may have lost all of this group
                group.by_rank.setdefault(rank, {})
    return list(found.values())


def _signature(entries: Sequence[Entry]) -> tuple[Signature, ...]:
    """What has to be equal on all ranks."""
    made = []
    for e in entries:
        equal = collective_of(e.kind) in EQUAL_SIZES
        made.append((e.kind, (e.inputs, e.outputs) if equal else None, e.dtypes if equal else None))
    return tuple(made)


def _faults(group: _Group, end_ns: int) -> list[Fault]:
    """The first place where the ranks part, else who is behind or came late."""
    if len(group.by_rank) < 2:
        return []
    numbers = sorted({seq for by_seq in group.by_rank.values() for seq in by_seq})
    before: list[tuple[Signature, ...]] = []
    firsts = group.firsts()
    for seq in numbers:
        known = [rank for rank, first in firsts.items() if first <= seq]  # others' rings have lost it
        issued = {r: group.by_rank[r][seq] for r in known if seq in group.by_rank[r]}
        kinds = {r: _signature(entries) for r, entries in issued.items()}
        if len(set(kinds.values())) > 1:
            return [_parted(group, seq, issued, kinds, before)]
        absent = [r for r in known if r not in issued]
        if absent:
            first = min(issued.values(), key=lambda entries: entries[0].created_ns)[0]
            fault = _fault("missing", group, absent, seq, first, None, list(issued))
            return [_with_seconds(fault, (end_ns - first.created_ns) / 1e9)]
        before.append(next(iter(kinds.values())))
    return _late(group, numbers)


def _parted(
    group: _Group,
    seq: int,
    issued: Mapping[int, list[Entry]],
    kinds: Mapping[int, tuple[Signature, ...]],
    before: Sequence[tuple[Signature, ...]],
) -> Fault:
    """Who left the way: those that do not what usually follows, else the fewer, and how they did."""
    usual = _usual(before)
    counts = Counter(kinds.values()).most_common()
    tied = len(counts) > 1 and counts[0][1] == counts[1][1]
    right = usual if tied and usual is not None and usual in kinds.values() else counts[0][0]
    followed = {k for k, _ in counts if _follows(group, seq, [r for r in kinds if kinds[r] == k], kinds)}
    if tied and usual not in kinds.values() and followed:
        right = next(k for k, _ in counts if k not in followed)
    odd = [r for r in kinds if kinds[r] != right]
    others = [r for r in kinds if kinds[r] == right]
    told, instead = issued[others[0]][0], issued[odd[0]][0]
    after = _usual([*before, right])
    what = _difference(told, instead)
    if any(kinds[r] in followed for r in odd) or (after is not None and kinds[odd[0]] == after != right):
        what = "skipped"
    return _fault(what, group, odd, seq, told, instead, others)


def _follows(
    group: _Group, seq: int, ranks: Sequence[int], kinds: Mapping[int, tuple[Signature, ...]]
) -> bool:
    """Whether what these ranks issued from here on is what others issued from the next number on."""
    mine = group.by_rank[ranks[0]]
    for other in (r for r in kinds if r not in ranks):
        theirs = group.by_rank[other]
        ahead = [k for k in range(seq, max(mine) + 1) if k in mine and k + 1 in theirs]
        if ahead and all(_signature(mine[k]) == _signature(theirs[k + 1]) for k in ahead):
            return True
    return False


def _usual(before: Sequence[tuple[Signature, ...]]) -> tuple[Signature, ...] | None:
    """What followed the last time that the longest run of these came; None where none came before."""
    best, found = 0, None
    for at in range(len(before) - 1, 0, -1):
        length = 0
        while length < min(at, CONTEXT) and before[at - 1 - length] == before[-1 - length]:
            length += 1
        if length > best:
            best, found = length, before[at]
        if best == CONTEXT:
            break
    return found


def _difference(told: Entry, instead: Entry) -> str:
    if told.kind != instead.kind:
        return "order"
    return "dtype" if told.dtypes != instead.dtypes else "size"


def _late(group: _Group, numbers: Sequence[int]) -> list[Fault]:
    """The rank that came latest to a collective that all have issued, if that is long.

    Hosts' clocks differ: what a rank is usually behind or ahead of the others is taken from its lateness.
    """
    shared = [s for s in numbers if all(s in by_seq for by_seq in group.by_rank.values())]
    stamps = {r: [by_seq[s][0].created_ns for s in shared] for r, by_seq in group.by_rank.items()}
    if not shared:
        return []
    middle = [median(row[k] for row in stamps.values()) for k in range(len(shared))]
    usual = {r: median(t - m for t, m in zip(row, middle, strict=True)) for r, row in stamps.items()}
    worst, late, at = 0.0, -1, 0
    for k in range(len(shared)):
        own = {r: row[k] - usual[r] for r, row in stamps.items()}
        last = max(own, key=own.__getitem__)
        apart = own[last] - min(own.values())
        if apart > worst:
            worst, late, at = apart, last, k
    if worst < LATE_NS:
        return []
    entry = group.by_rank[late][shared[at]][0]
    fault = _fault("late", group, [late], shared[at], entry, None, [r for r in stamps if r != late])
    return [_with_seconds(fault, worst / 1e9)]


def _fault(
    what: str,
    group: _Group,
    ranks: Sequence[int],
    seq: int,
    told: Entry,
    instead: Entry | None,
    others: Sequence[int],
) -> Fault:
    return Fault(
        what=what,
        group=group.name,
        ranks=tuple(sorted(ranks)),
        seq=seq,
        collective=told.what,
        instead=None if instead is None else instead.what,
        others=tuple(sorted(others)),
        seconds=None,
        line=(instead or told).line,
    )


def _with_seconds(fault: Fault, seconds: float) -> Fault:
    return replace(fault, seconds=seconds)
