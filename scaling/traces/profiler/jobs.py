"""Group files by world size and rank, with the doubts about each: their steps as a table, and a typical step drawn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaling.analysis.doctor.differences import ranks_text
from scaling.analysis.results import Span, Timeline
from scaling.analysis.results.measured import Measured
from scaling.analysis.statistics.rounds import student
from scaling.traces.profiler.columns import Floats, Spans, minus, union
from scaling.traces.profiler.match import Matched, moving, shared_steps, split
from scaling.traces.profiler.read import RankTrace, UnreadFile

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
    files: Sequence[RankTrace], problems: Sequence[UnreadFile]
) -> tuple[list[TracedRanks], tuple[str, ...]]:
    """Files by world size and rank; the earlier of two files of one rank is used."""
    files, alone = _alone(files)
    notes = [f"{p.path}: {p.why}" for p in problems] + alone
    used, placed = {f.rank for f in files}, []
    free = (r for r in range(2 * len(files)) if r not in used)
    for file in sorted(files, key=lambda f: str(f.path)):
        rank = next(free) if file.rank is None else file.rank
        placed.append((rank, file))
        if file.rank is None and len(files) > 1:
            notes.append(
                f"{file.path}: neither the file nor its name gives a rank; it is used as rank {rank}"
            )
    told = [f.world_size for _, f in placed if f.world_size]
    seen = max([r for r, _ in placed] + [p.rank for p in problems if p.rank is not None], default=-1) + 1
    default = Counter(told).most_common(1)[0][0] if told else max(seen, 1)
    by_size: dict[int, dict[int, RankTrace]] = defaultdict(dict)
    for rank, file in sorted(placed, key=lambda item: (item[1].started_us, str(item[1].path))):
        ranks = by_size[file.world_size or default]
        if rank in ranks:
            notes.append(f"{file.path}: rank {rank} has an earlier trace, {ranks[rank].path}, which is used")
        else:
            ranks[rank] = file
    by_world = []
    for size, ranks in sorted(by_size.items()):
        world = max(size, max(ranks) + 1)
        by_world.append(
            TracedRanks(world_size=world, ranks=dict(sorted(ranks.items())), warnings=tuple(doubts(ranks)))
        )
    return by_world, tuple(notes)


def _alone(files: Sequence[RankTrace]) -> tuple[list[RankTrace], list[str]]:
    """Beside a job's files, a file without ranks and communication is that of one rank alone."""
    if not any((f.world_size or 1) > 1 for f in files):
        return list(files), []
    placed, notes = [], []
    for file in files:
        alone = file.world_size is None and not file.parts.collectives.sent
        placed.append(replace(file, rank=0, world_size=1) if alone else file)
        if alone:
            notes.append(f"{file.path}: holds no ranks and no communication; it is used as a run of one rank")
    return placed, notes


def doubts(ranks: dict[int, RankTrace]) -> Iterable[str]:
    """Doubts about the numbers of each rank; a line for each kind."""
    for field, which in (("absurd", "with negative or impossible times"), ("odd", "that cannot be read")):
        each = [f"{count} on rank {r}" for r, f in ranks.items() if (count := getattr(f, field))]
        if each:
            yield f"events {which} are left out: {', '.join(each[:8])}"
    guessed = "counted as communication, by where it was launched or its stream: its name is not a known one"
    for kind, what in (("guessed", guessed), ("unknown", "communication of an unknown collective")):
        names: Counter[str] = Counter()
        for file in ranks.values():
            names.update(getattr(file.parts, kind))
        yield from (f"{name:.60}: {count} times {what}" for name, count in names.most_common(5))
    if len({f.parts.device for f in ranks.values()}) > 1:
        cpu = [r for r, f in ranks.items() if f.parts.device == "cpu"]
        yield f"INCOMPLETE: {ranks_text(cpu)}: no events of a device in its trace; its operators were counted"
    unseen = [r for r, f in ranks.items() if f.unseen]
    if unseen:
        yield (
            f"INCOMPLETE: {ranks_text(unseen)}: {UNSEEN}, so only launches were seen; profile with "
            "ProfilerActivity.CUDA too"
        )
    unphased = [r for r, f in ranks.items() if "forward" not in f.parts.columns]
    if unphased:
        yield (
            f"{ranks_text(unphased)}: no operators of the host, so compute is not divided into forward, backward and "
            "optimizer; profile with ProfilerActivity.CPU too"
        )
    if any(f.parts.labels == ("whole trace",) for f in ranks.values()):
        yield "no ProfilerStep in the traces: each counts as one step, profiler.step() marks them"
    elif all(len(f.parts.labels) == 1 for f in ranks.values()):
        yield "one step: its borders count in full, and there is no interval"
    if len({f.parts.labels for f in ranks.values()}) > 1:
        yield "the ranks show unlike steps; only those that all have are compared"


STEPS_MIN = 5
"""With fewer steps there is no interval."""


def measured(values: Iterable[float]) -> Measured | None:
    """Mean of one value a step, with a t-interval widened for the steps' autocorrelation (AR(1)); None without values.

    The mean of n values with lag-1 autocorrelation r has (1+r)/(1-r) times the variance of independent ones
    (Wilks, "Statistical Methods in the Atmospheric Sciences", section 5.2.4).
    """
    x = np.array([v for v in values if np.isfinite(v)], dtype=float)
    if not len(x):
        return None
    mean = float(x.mean())
    if len(x) < STEPS_MIN:
        return Measured(mean, n=len(x))
    d = x - mean
    square = float((d * d).sum())
    r = min(max(float((d[1:] * d[:-1]).sum()) / square, 0.0), 0.9) if square else 0.0
    half = student(len(x) - 1) * (square / (len(x) - 1) / len(x) * (1 + r) / (1 - r)) ** 0.5
    return Measured.around(mean, half, len(x))


def mean(values: Iterable[float]) -> Measured:
    """As `measured`; ValueError without values."""
    if (result := measured(values)) is None:
        raise ValueError("there is no value to take a mean of")
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Steps of all ranks: each column is ranks x steps, ms, over the steps that all ranks have."""

    ranks: tuple[int, ...]
    columns: dict[str, Floats]

    def mean(self, name: str) -> Measured | None:
        """Mean over ranks and steps, with an interval over steps."""
        return measured(self.columns[name].mean(axis=0)) if name in self.columns else None

    def of(self, name: str, rank: int) -> Measured | None:
        if name not in self.columns:
            return None
        return measured(self.columns[name][self.ranks.index(rank)])


def table(job: TracedRanks, matched: Matched) -> Table:
    """Columns of decompose.Parts over the steps that all ranks have; `moved` and `waited` where all is matched."""
    ranks = tuple(job.ranks)
    shared = shared_steps([file.parts.labels for file in job.ranks.values()])
    columns: dict[str, list[Floats]] = defaultdict(list)
    # What begins behind the last window belongs to none.
    inside = {r: file.parts.collectives.step < len(file.parts.labels) for r, file in job.ranks.items()}
    released = np.concatenate([matched.released[r][inside[r]] for r in ranks])
    whole = len(released) > 0 and bool(np.isfinite(released).all())
    least = min(len(file.parts.labels) for file in job.ranks.values())
    for rank, file in job.ranks.items():
        parts = file.parts
        # Without a common step, each rank's first ones are used, as many as all ranks have.
        at = [parts.labels.index(s) for s in shared] or list(range(least))
        columns_of_rank = dict(parts.columns)
        if whole:
            columns_of_rank["moved"], columns_of_rank["waited"] = split(
                parts.exposed, parts.collectives, matched.released[rank], parts.borders
            )
        for name, values in columns_of_rank.items():
            columns[name].append(values[at] / 1e6)
    whole_columns = {name: np.stack(rows) for name, rows in columns.items() if len(rows) == len(ranks)}
    return Table(ranks=ranks, columns=whole_columns)


RANKS_MAX = 16
"""Ranks drawn."""
SPANS_MAX = 400
"""Spans of a rank's lane; the shortest gaps are closed until no more are left."""


def timeline(ranks: Mapping[int, RankTrace], matched: Matched, world_size: int) -> Timeline:
    """The step whose length is nearest to the mean; each rank from its own begin, since clocks may differ."""
    lengths = [f.parts.columns["window"] for f in ranks.values()]
    steps = min(map(len, lengths))
    mean = np.mean([row[:steps] for row in lengths], axis=0)
    step = int(np.abs(mean - mean.mean()).argmin())
    spans: list[Span] = []
    for rank, file in list(ranks.items())[:RANKS_MAX]:
        spans += _rank(rank, file, matched, step)
    return Timeline(world_size=world_size, spans=tuple(spans))


def _rank(rank: int, file: RankTrace, matched: Matched, step: int) -> list[Span]:
    parts, calls = file.parts, file.parts.collectives
    low, high = int(parts.borders[step]), int(parts.borders[step + 1])
    window = Spans(np.array([low]), np.array([high]))
    outside = Spans(np.array([-(1 << 62), high]), np.array([low, 1 << 62]))
    moves = moving(calls, matched.released[rank])
    compute, exposed = minus(parts.compute, outside), minus(parts.exposed, outside)
    lanes = {
        "compute": compute,
        "exposed_skew": minus(exposed, moves),
        "exposed_transfer": minus(exposed, minus(exposed, moves)),
        "host": minus(window, union(compute, exposed)),
    }

    def span(lane: str, name: str, begin: int, end: int, size: int | None = None) -> Span:
        begin_ms, end_ms = round((begin - low) / 1e6, 4), round((end - low) / 1e6, 4)
        return Span(rank=rank, lane=lane, name=name, begin_ms=begin_ms, end_ms=end_ms, bytes=size)

    spans = [
        span("compute", name, begin, end)
        for name, busy in lanes.items()
        for begin, end in zip(*_coarse(busy), strict=True)
    ]
    inside = np.flatnonzero((calls.begin >= low) & (calls.begin < high))[:SPANS_MAX]
    return spans + [
        span("link", f"{sent.collective} {k}", int(calls.begin[row]), int(calls.end[row]), sent.bytes)
        for k, (row, sent) in enumerate((row, calls.sent[row]) for row in inside)
    ]


def _coarse(spans: Spans) -> tuple[list[int], list[int]]:
    """At most SPANS_MAX intervals: the shortest gaps between them are closed."""
    if len(spans) > SPANS_MAX:
        gaps = spans.begin[1:] - spans.end[:-1]
        kept = np.sort(np.argsort(-gaps, kind="stable")[: SPANS_MAX - 1])
        begin = np.concatenate([spans.begin[:1], spans.begin[kept + 1]])
        end = np.concatenate([spans.end[kept], spans.end[-1:]])
        return begin.tolist(), end.tolist()
    return spans.begin.tolist(), spans.end.tolist()
