"""What an own loop does beside its steps, long steps that come back, and what share of the time counted. Pure.

A probe records each pause and each step that is far longer than those before it (records.format.PauseRecord), on every
rank. What ranks record of the same step, or of two in a row, is one event: where one saves, the others wait for it, in
the same step or in the next one. Events whose kind is known are counted by kind. Others are noise of the machine unless
they lie on a grid of steps: every p-th step from some step on, most places of it taken, and so often that as many
events at random would not hit them (binomial tail, times the grids that were tried).

Steps of known events and of grids are left out of every other figure; what stays are the steps between them.

Over all launches of a folder, rank 0's time from the start of its first process to its last record is divided into

    steps that counted, waiting for the slowest in them, steps done twice, start-up, time between launches,
    pauses, stalls, and what is left

Steps that counted are the last launch's last step less the first launch's first, by the optimizer's own count, which a
checkpoint carries on; what a launch ran beyond the next one's begin was done twice. The steps of a launch take the mean
of its plain steps between pauses and stalls, since a machine is not as fast in every launch.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from scaling.analysis.results import Goodput, Measured, Pause, Point, Stall
from scaling.analysis.statistics.rounds import student
from scaling.records.decode import RankFile
from scaling.records.format import ALLOCATOR, BASELINE, BESIDE_SAVE, COLLECTION, PAUSES_SINGLE, PauseRecord
from scaling.records.tables import Tables, in_memory
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN

EVERY_MIN, HITS_MIN, TAKEN = 4, 3, 0.8
"""A grid has every fourth step at most; so many of its places have to be taken, and such a share of them."""
CHANCE = 0.01
"""Probability of a grid among random events from which on it counts as one."""
GRIDS, CANDIDATES, LEVELS, APART = 3, 8, 4, 0.75
"""Grids of one kind that are looked for, most frequent distances that are tried, and groups of the longest events: one
ends where the next event is shorter than this share of its last."""
LONG_PAUSE_NS = 1_000_000_000
"""A longer gap is a pause, whatever the loop did."""
UNKNOWN = "unknown"
NOT_THE_LOOP = (BESIDE_SAVE, BASELINE)
ROUNDS_LEFT = 3
"""No step is left out where an arm would have fewer rounds."""

_Noted = tuple[RankFile, PauseRecord]
"""A record, and the rank's file that it is from."""


@dataclass(frozen=True, slots=True)
class _Event:
    """What all ranks record of one step, or of two in a row; `count` of them where records were put together."""

    kind: str
    more_ns: float
    step: int
    """The first of the two that is longer by at least half as much as the longest."""
    between: bool
    """Whether it lies between two steps on the rank that it comes from."""
    ranks: frozenset[int]
    """Those it comes from; the others wait for them."""
    records: tuple[_Noted, ...]
    count: int


@dataclass(frozen=True, slots=True)
class _Group:
    """Events of one kind in one launch. `every`: the distance of a grid, None for another."""

    kind: str
    every: int | None
    events: tuple[_Event, ...]
    steps: int
    """Steps of the launch."""


def beside(tables: Tables, plan: Plan) -> tuple[tuple[Pause, ...], tuple[Stall, ...]]:
    """What a loop does beside its steps at one world size: by kind, the largest first."""
    wall_s = sum(end - begin for begin, end in spans(tables).values()) / 1e9
    groups: dict[tuple[str, int | None], list[_Group]] = {}
    for group in _groups(tables, plan):
        groups.setdefault((group.kind, group.every), []).append(group)
    paused: dict[str, list[_Event]] = {}
    stalls: list[Stall] = []
    for (kind, every), alike in groups.items():
        events = [event for group in alike for event in group.events]
        if every or kind in (COLLECTION, ALLOCATOR):
            stalls.append(
                _stall(kind, every, events, sum(group.steps for group in alike), wall_s, plan.ranks)
            )
        if kind not in (COLLECTION, ALLOCATOR) and (kind or not every):
            paused.setdefault(kind, []).extend(events)
    pauses = []
    for kind, events in paused.items():
        seconds = sum(event.more_ns for event in events) / 1e9
        pauses.append(
            Pause(
                kind=kind or UNKNOWN,
                count=(count := sum(event.count for event in events)),
                seconds=Measured(seconds, n=count),
                where=_where(events, plan.ranks),
                wall_share=min(1.0, seconds / wall_s) if wall_s else 0.0,
            )
        )
    by_rank: dict[int, list[_Noted]] = {}
    for save in _saves(tables):
        by_rank.setdefault(save[0].rank, []).append(save)
    if by_rank:
        saved_s = {rank: sum(r.more_ns / 1e9 for _, r in saves) for rank, saves in by_rank.items()}
        rank = max(saved_s, key=lambda rank: saved_s[rank])
        pauses.append(
            Pause(
                kind=BESIDE_SAVE,
                count=len(by_rank[rank]),
                seconds=Measured(saved_s[rank], n=len(by_rank[rank])),
                where="beside steps",
                steps_beside=_slowed(tables, by_rank[rank]),
            )
        )
    pauses.sort(key=lambda pause: -pause.seconds.value)
    return tuple(pauses), tuple(sorted(stalls, key=lambda stall: -stall.cost_ms.value))


def disturbed(tables: Tables, plan: Plan) -> pl.DataFrame:
    """(launch, block) of the blocks whose steps are left out of other figures."""
    records = [pair for group in _groups(tables, plan) for event in group.events for pair in event.records]
    left_out = _overlapping(tables, records)
    near = pl.concat([left_out, _overlapping(tables, _saves(tables))]).unique()
    kept = in_memory(
        tables.blocks.filter(pl.col("round") >= 0).select("launch", "block", "round", "arm", "detailed")
    )
    arms = ["arm", "detailed"]
    rounds = pl.struct("launch", "round").n_unique()
    before = kept.group_by(arms).agg(all=rounds)
    for some in (near, left_out):
        left = kept.join(some, on=["launch", "block"], how="anti").group_by(arms).agg(left=rounds)
        both = before.join(left, on=arms, how="left").with_columns(pl.col("left").fill_null(0))
        if both.filter(pl.col("left") < pl.min_horizontal("all", ROUNDS_LEFT)).is_empty():
            return some
    return left_out.clear()


def _groups(tables: Tables, plan: Plan) -> Iterator[_Group]:
    """Known events by kind, and grids of all, launch by launch."""
    ran = steps_by_launch(tables, plan)
    for launch in sorted({file.launch for file in tables.ranks}):
        by_kind: dict[str, list[_Event]] = {}
        for event in _events([file for file in tables.ranks if file.launch == launch]):
            by_kind.setdefault(event.kind, []).append(event)
        for kind, events in by_kind.items():
            yield from _of_kind(kind, events, ran.get(launch, 0))


def steps_by_launch(tables: Tables, plan: Plan) -> dict[int, int]:
    """How many steps each launch ran: by its own count, else up to its last record."""
    rounds = in_memory(tables.blocks.group_by("launch").agg(pl.col("round").max()))
    measure = plan.spec.measure
    ran = {launch: measure.warmup_max + measure.steps * (last + 1) for launch, last in rounds.iter_rows()}
    for file in tables.ranks:
        last = max((record.step + 1 for record in file.pauses), default=0)
        ran[file.launch] = max(ran.get(file.launch, 0), last)
    return ran | {file.launch: file.steps for file in tables.ranks if file.steps}


def _of_kind(kind: str, events: list[_Event], steps: int) -> Iterator[_Group]:
    """The grids of one kind, and the other events where they are known."""
    single = [event for event in events if event.count == 1]
    seen = single[-1].step + 1 if len(single) >= PAUSES_SINGLE else steps
    gone = set[int]()
    for _ in range(GRIDS):
        grid = _grid([event for event in single if event.step not in gone], gone, seen)
        if grid is None:
            break
        every, members = grid
        yield _Group(kind, every, tuple(members), seen)
        gone |= {event.step for event in members}
    others = [event for event in events if event.step not in gone]
    if not kind:
        others = [event for event in others if event.between and event.more_ns > event.count * LONG_PAUSE_NS]
    if others:
        yield _Group(kind, None, tuple(others), steps)


def _grid(events: Sequence[_Event], gone: set[int], steps: int) -> tuple[int, list[_Event]] | None:
    """The distance and the events of a grid, among the longest events first; None where there is none.

    `gone`: steps of other grids. Two events make a grid, so the others of it are the evidence, and as many grids are
    tried as there are neighbours.
    """
    from scipy.special import bdtrc  # noqa: PLC0415  # slow to import, and not always asked for

    longest = sorted(events, key=lambda event: -event.more_ns)
    ends = [
        k for k, (a, b) in enumerate(pairwise(longest), 1) if b.more_ns < APART * a.more_ns and k >= HITS_MIN
    ]
    for end in [*ends[:LEVELS], len(longest)]:
        chosen = sorted(longest[:end], key=lambda event: event.step)
        at = [event.step for event in chosen]
        for every, _ in Counter(np.diff(at).tolist()).most_common(CANDIDATES):
            if every < EVERY_MIN:
                continue
            phase = Counter(step % every for step in at).most_common(1)[0][0]
            members = [event for event in chosen if event.step % every == phase]
            places = len({*range(members[0].step, steps, every)} - gone)
            if len(members) < max(HITS_MIN, TAKEN * places):
                continue
            others = (len(chosen) - len(members) + 1) / steps
            if float(bdtrc(len(members) - 3, places - 2, others)) * len(chosen) < CHANCE:
                return every, members
    return None


def _events(files: Sequence[RankFile]) -> Iterator[_Event]:
    """What the ranks of one launch record, put together step by step."""
    records = [(f, record) for f in files for record in f.pauses if record.kind not in NOT_THE_LOOP]
    records.sort(key=lambda pair: (pair[1].step, pair[0].rank))
    for noted in _in_a_row(records):
        kinds = {record.kind for _, record in noted if record.kind} or {""}
        for kind in sorted(kinds):
            of_kind = [(file.rank, record) for file, record in noted if record.kind == kind]
            by_rank, counts = Counter[int](), Counter[int]()
            for rank, record in of_kind:
                by_rank[rank] += record.more_ns
                counts[rank] += record.count
            longest = max(record.more_ns for _, record in of_kind)
            gaps = {rank for rank, record in of_kind if record.gap_ns >= record.more_ns / 2}
            yield _Event(
                kind=kind,
                more_ns=float(max(by_rank.values()) if kind else np.mean(list(by_rank.values()))),
                step=min(r.step for _, r in of_kind if 2 * r.more_ns >= longest),
                between=bool(gaps),
                ranks=frozenset(gaps or by_rank),
                records=tuple(noted),
                count=max(counts.values()) if kind else max(record.count for _, record in of_kind),
            )


def _in_a_row(records: Sequence[_Noted]) -> Iterator[list[_Noted]]:
    """Records of one step and the next one."""
    some: list[_Noted] = []
    for pair in records:
        if some and pair[1].step > some[0][1].step + 1:
            yield some
            some = []
        some.append(pair)
    if some:
        yield some


def _stall(
    kind: str, every: int | None, events: Sequence[_Event], steps: int, wall_s: float, world_size: int
) -> Stall:
    """By how much each of some steps is longer, and what that is a step."""
    each = np.repeat([event.more_ns / event.count for event in events], [e.count for e in events]) / 1e6
    spread = float(each.std(ddof=1)) / len(each) ** 0.5 if len(each) > 1 else None
    half = None if spread is None else student(len(each) - 1) * spread
    longer = Measured.around(float(each.mean()), half, len(each))
    return Stall(
        kind=kind or UNKNOWN,
        every_steps=every,
        cost_ms=longer * (1 / every if every else len(each) / steps),
        longer_ms=longer,
        where=_where(events, world_size),
        wall_share=min(1.0, float(each.sum()) / 1e3 / wall_s) if wall_s else 0.0,
    )


def _where(events: Sequence[_Event], world_size: int) -> str:
    """Between steps or in them, and the rank where it is one alone."""
    ranks = frozenset().union(*(event.ranks for event in events))
    where = "between steps" if sum(event.between for event in events) * 2 > len(events) else "in steps"
    return f"{where}, on rank {min(ranks)}" if len(ranks) == 1 < world_size else where


def _saves(tables: Tables) -> list[_Noted]:
    return [(file, r) for file in tables.ranks for r in file.pauses if r.kind == BESIDE_SAVE]


def _overlapping(tables: Tables, records: Iterable[_Noted]) -> pl.DataFrame:
    """(launch, block) of the blocks in which a rank recorded something, by its own host's clock."""
    windows = {
        (file.launch, file.rank, record.time_ns - record.more_ns // record.count, record.time_ns)
        for file, record in records
    }
    names = dict.fromkeys(("of_launch", "of_rank", "first", "last"), pl.Int64)
    loop = tables.blocks.filter(pl.col("round") >= 0)  # the others are a baseline's
    blocks = in_memory(loop.select("launch", "rank", "block", "host_begin_ns", "host_end_ns"))
    hit = blocks.join_where(
        pl.DataFrame(list(windows), schema=names, orient="row"),
        pl.col("launch") == pl.col("of_launch"),
        pl.col("rank") == pl.col("of_rank"),
        pl.col("host_begin_ns") < pl.col("last"),
        pl.col("host_end_ns") > pl.col("first"),
    )
    return hit.select("launch", "block").unique()


def _slowed(tables: Tables, saves: Sequence[_Noted]) -> Measured | None:
    """A step that begins beside a save over plain steps in blocks without one; None where either are too few.

    Every step beside a save is counted, recorded or not: a save slows the steps behind its begin most, and those are in
    no block, since it is a pause. Its steps depend on each other, so saves are what is counted.
    """
    here = np.array([(r.steps_ns, r.steps) for _, r in saves if r.steps], dtype=float).reshape(-1, 2)
    plain = tables.blocks.filter((pl.col("arm") == PLAIN) & (pl.col("round") >= 0))
    length = ((pl.col("end_ns") - pl.col("begin_ns")) / pl.col("steps")).mean().alias("length")
    blocks = in_memory(plain).group_by("launch", "block").agg(length)
    apart = blocks.join(_overlapping(tables, saves), on=["launch", "block"], how="anti")["length"].to_numpy()
    n = min(len(here), len(apart))
    if n < ROUNDS_LEFT:
        return None
    ns, steps = here.mean(axis=0)
    errors = (here[:, 0] - ns / steps * here[:, 1]) / ns, apart / apart.mean() - 1
    relative = [float((error**2).sum() / (len(error) - 1) / len(error)) ** 0.5 for error in errors]
    ratio = float(ns / steps / apart.mean())
    return Measured.around_log(ratio, student(n - 1) * math.hypot(*relative), n)


def spans(tables: Tables) -> dict[int, tuple[int, int]]:
    """By launch: begin of rank 0's first block and its last record, ns of its host's clock."""
    loop = tables.blocks.filter((pl.col("rank") == 0) & (pl.col("round") >= 0))
    times = pl.col("host_begin_ns").min(), pl.col("host_end_ns").max()
    begins = {launch: at for launch, *at in in_memory(loop.group_by("launch").agg(*times)).iter_rows()}
    return {
        f.launch: (begins[f.launch][0], max(begins[f.launch][1], *(r.time_ns for r in f.pauses), 0))
        for f in tables.ranks
        if f.rank == 0 and f.launch in begins
    }


def with_goodput(point: Point, tables: Tables, plan: Plan) -> Point:
    """`tables`: of all launches. The point itself where a process did not tell when it started."""
    span, ran = spans(tables), steps_by_launch(tables, plan)
    files = [file for file in tables.ranks if file.rank == 0 and file.process_ns and file.launch in span]
    if not files or point.step_ms is None:
        return point
    files.sort(key=lambda file: file.process_unix_ns)
    started_s = np.array([file.process_unix_ns for file in files]) / 1e9
    first_s, last_s = np.array([np.subtract(span[f.launch], f.process_ns) for f in files]).T / 1e9 + started_s
    before, every = np.array([(file.steps_before, ran[file.launch]) for file in files]).T
    numbered = bool(min(before) >= 0)  # -1: the optimizer does not count its steps
    counted = np.diff([*before, before[-1] + every[-1]]) if numbered else every
    twice = np.maximum(every - counted, 0)
    usual_s, skew = point.step_ms.value / 1e3, point.parts_ms.exposed_skew
    of_launch = _step_s(tables, plan)
    step_s = np.array([of_launch.get(file.launch, usual_s) for file in files])
    counted_s, twice_s = float(counted @ step_s), float(twice @ step_s)
    waiting = min(1.0, max(0.0, skew.value / point.step_ms.value)) if skew else 0.0
    pauses, stalls = beside(tables, plan)
    named = {pause.kind for pause in pauses}
    wall_s = float(last_s[-1] - started_s[0])
    warm_up_s = plan.spec.measure.warmup_max * step_s  # these steps count, too
    parts = {
        "productive_s": counted_s * (1 - waiting),
        "waiting_s": counted_s * waiting,
        "done_twice_s": twice_s,
        "start_up_s": float((first_s - started_s - warm_up_s).sum()),
        "between_launches_s": float((started_s[1:] - last_s[:-1]).sum()),
        "pauses_s": sum(pause.seconds.value for pause in pauses if pause.wall_share),
        "stalls_s": sum(s.longer_ms.value * s.longer_ms.n / 1e3 for s in stalls if s.kind not in named),
    }
    goodput = Goodput(
        launches=len(files),
        steps=int(counted.sum()),
        steps_done_twice=int(twice.sum()) if numbered else None,
        share=counted_s / wall_s,
        wall_s=wall_s,
        **parts,
        other_s=wall_s - sum(parts.values()),
    )
    return dataclasses.replace(point, goodput=goodput)


def _step_s(tables: Tables, plan: Plan) -> dict[int, float]:
    """By launch: the mean of its plain steps between pauses and stalls, s; those with none have no entry."""
    plain = tables.steps.filter((pl.col("arm") == PLAIN) & (pl.col("round") >= 0))
    left = plain.join(disturbed(tables, plan).lazy(), on=["launch", "block"], how="anti")
    took = left.group_by("launch").agg((pl.col("end_ns") - pl.col("begin_ns")).mean() / 1e9)
    return dict(in_memory(took).iter_rows())
