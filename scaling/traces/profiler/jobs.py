"""Group the files by world size and rank, and list the doubts about each."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scaling.traces.profiler.files import RankTrace, UnreadFile

UNSEEN = "it used a device, but its trace has no events of one"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRanks:
    """The traces of one world size: a file a rank."""

    world_size: int
    ranks: dict[int, RankTrace]
    warnings: tuple[str, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a readable trace."""
        return tuple(r for r in range(self.world_size) if r not in self.ranks)

    @property
    def unseen(self) -> tuple[int, ...]:
        """Ranks whose device did work that their traces do not show."""
        return tuple(r for r, f in self.ranks.items() if f.unseen)


def jobs(
    found: Sequence[RankTrace], problems: Sequence[UnreadFile]
) -> tuple[list[TracedRanks], tuple[str, ...]]:
    """Files by world size and rank; the earlier of two files of one rank is used."""
    found, alone = _alone(found)
    said = [f"{p.path}: {p.why}" for p in problems] + alone
    known = [f for f in found if f.rank is not None]
    nameless = sorted((f for f in found if f.rank is None), key=lambda f: str(f.path))
    taken = {f.rank for f in known}
    free = (r for r in range(len(found) + len(taken)) if r not in taken)
    placed: list[tuple[int, RankTrace]] = [(f.rank, f) for f in known if f.rank is not None]
    for file, rank in zip(nameless, free, strict=False):
        placed.append((rank, file))
        if len(found) > 1:
            said.append(f"{file.path}: neither the file nor its name gives a rank; it is used as rank {rank}")
    told = [f.world_size for _, f in placed if f.world_size]
    seen = max([r for r, _ in placed] + [p.rank for p in problems if p.rank is not None], default=-1) + 1
    default = Counter(told).most_common(1)[0][0] if told else max(seen, 1)
    by_size: dict[int, dict[int, RankTrace]] = defaultdict(dict)
    for rank, file in sorted(placed, key=lambda item: (item[1].started_us, str(item[1].path))):
        ranks = by_size[file.world_size or default]
        if rank in ranks:
            said.append(f"{file.path}: rank {rank} has an earlier trace, {ranks[rank].path}, which is used")
        else:
            ranks[rank] = file
    made = []
    for size, ranks in sorted(by_size.items()):
        world = max(size, max(ranks) + 1)
        made.append(
            TracedRanks(world_size=world, ranks=dict(sorted(ranks.items())), warnings=tuple(doubts(ranks)))
        )
    return made, tuple(said)


def _alone(found: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Beside a job's files, a file without ranks and communication is that of one rank alone."""
    if not any((f.world_size or 1) > 1 for f in found):
        return list(found), []
    made, said = [], []
    for file in found:
        alone = file.world_size is None and not file.parts.collectives.sent
        made.append(replace(file, rank=0, world_size=1) if alone else file)
        if alone:
            said.append(f"{file.path}: holds no ranks and no communication; it is used as a run of one rank")
    return made, said


def doubts(ranks: dict[int, RankTrace]) -> Iterable[str]:
    """Doubts about the numbers of each rank; a line for each kind."""

    def lines(what: str, counts: dict[int, int]) -> Iterable[str]:
        if counts:
            each = ", ".join(f"{n} on rank {r}" for r, n in list(counts.items())[:8])
            yield f"{what}: {each}"

    yield from lines(
        "events with negative or impossible times are left out",
        {r: f.absurd for r, f in ranks.items() if f.absurd},
    )
    yield from lines("events that cannot be read are left out", {r: f.odd for r, f in ranks.items() if f.odd})
    guessed: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for file in ranks.values():
        guessed.update(file.parts.guessed)
        unknown.update(file.parts.unknown)
    for name, count in guessed.most_common(5):
        yield (
            f"{_short(name)}: {count} times counted as communication, by where it was launched or its stream: "
            "its name is not a known one"
        )
    for name, count in unknown.most_common(5):
        yield f"{_short(name)}: communication of an unknown collective, {count} times"
    if len({f.parts.device for f in ranks.values()}) > 1:
        cpu = [r for r, f in ranks.items() if f.parts.device == "cpu"]
        yield f"INCOMPLETE: rank {listed(cpu)}: no events of a device in its trace; its operators were counted"
    unseen = [r for r, f in ranks.items() if f.unseen]
    if unseen:
        yield (
            f"INCOMPLETE: rank {listed(unseen)}: {UNSEEN}, so only launches were seen; profile with "
            "ProfilerActivity.CUDA too"
        )
    if any(f.parts.labels == ("whole trace",) for f in ranks.values()):
        yield "no ProfilerStep in the traces: each counts as one step, profiler.step() marks them"
    elif all(len(f.parts.labels) == 1 for f in ranks.values()):
        yield "one step: its borders count in full, and there is no interval"
    if len({f.parts.labels for f in ranks.values()}) > 1:
        yield "the ranks show unlike steps; only those that all have are compared"


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."


def listed(ranks: Sequence[int]) -> str:
    """`3, 5 and 9 more`."""
    text = ", ".join(map(str, ranks[:8]))
    return text if len(ranks) <= 8 else f"{text} and {len(ranks) - 8} more"
