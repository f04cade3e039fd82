"""Detailed blocks that say of every collective where ranks wait for it: those of sharded modules, and of SyncBatchNorm.

A rank is exposed only in the windows that the strategy stamps: before a unit's forward and backward, in a norm, and
where gradients are reduced. In a window, until the collective that it waits for is done, instants in which any of the
rank's collectives moves data are exposed transfer, the others exposed skew. What is left of the window is the
strategy's own.

Arrays: S steps, R ranks, K collectives of a step in the order of launch; times in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.detailed import BROADCAST
from scaling.analysis.decompose.quantities import DURATIONS, WAITS, Cycle
from scaling.analysis.decompose.sent import Sent, by_kind
from scaling.analysis.decompose.served import ChannelOf
from scaling.analysis.network.awaited import Awaited
from scaling.analysis.network.beside import APART, Beside, Members
from scaling.analysis.network.channel import ONE, Channel
from scaling.analysis.network.program import Mark, Program
from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import Tables
from scaling.spec.parallel import Mesh
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES, PROBE

Key = tuple[int, int]
"""(launch, round)"""
Groups = Callable[[int, int], tuple[int, ...]]
"""The ranks of a communicator: (rank, its key in the records)."""
PLACE = ["launch", "block", "step", "rank"]
_OF_STEPS = ("begin_ns", "end_ns", "input_ns", "backward_ns", "optimizer_ns", "sync_end_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitStamps:
    """One detailed block on all ranks: S x R x K, absolute."""

    launch: Floats
    done: Floats
    wait: Floats
    resume: Floats
    sent: tuple[Sent, ...]
    members: tuple[Members, ...]
    channel: Channel
    """How the back end serves them."""
    released: Floats
    """The latest launch of a collective's ranks; of one that follows its data, of those that the rank waited for."""
    finished: Floats
    """Their latest end; there, the rank's own."""
    follows: Mapping[int, Awaited]
    """The collectives that follow their data."""
    begun: Floats
    transfer: Floats
    """What each would take if its group had its wire alone."""
    together: Floats
    """What all groups of the collective have of their wire."""
    beside: Beside
    waited: Floats
    """S x R: all windows together, by the steps' own stamps."""
    steps: dict[str, Floats]
    """S x R: the fields of the steps' rows, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedBlocks:
    """What the detailed blocks of a trial say."""

    cycles: tuple[Cycle, ...]
    merged: dict[str, dict[Key, float]]
    sent: tuple[Sent, ...]
    programs: dict[Key, Program]
    """A block's steps as one program of means, for closure."""
    on_wire: dict[Key, Floats]
    """K: what all groups of each collective have of their wire, mean over steps and ranks, ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The units' turns of one block over a mesh of one rank."""

    names: tuple[tuple[str, str, int], ...]
    """T: kind, phase and unit."""
    at: Floats
    """R x T x 2: launch and wait, ns since the last turn of the step before."""
    phases: dict[str, Floats]
    """R: `forward` and `compute`, ns."""


def groups_of(tables: Tables) -> Groups:
    """From the heads of the rank files; a communicator that none names is the rank alone."""
    known = {(file.rank, key): ranks for file in tables.ranks for key, ranks in file.groups.items()}
    return lambda rank, key: known.get((rank, key), (rank,))


def has_units(buckets: pl.LazyFrame) -> bool:
    """Whether some detailed step says where its ranks wait for a collective: a sharded module's, or one with norms."""
    rows = buckets.filter((pl.col("arm") == PROBE) & pl.col("detailed") & (pl.col("unit") >= 0))
    return not rows.filter(pl.col("wait_ns") > 0).head(1).collect().is_empty()


def read_sharded(
    own: pl.DataFrame,
    buckets: pl.LazyFrame,
    mesh: Mesh,
    channel: ChannelOf,
    groups: Groups,
    beside: Beside = APART,
) -> ShardedBlocks:
    """Cycles, block means, and the list of collectives, all of one mesh."""
    cycles: list[Cycle] = []
    merged: dict[str, dict[Key, float]] = {}
    programs: dict[Key, Program] = {}
    on_wire: dict[Key, Floats] = {}
    sent: tuple[Sent, ...] = ()
    for key, stamps, inputs in unit_blocks(own, buckets, mesh, channel, groups, beside):
        sent = stamps.sent
        for name, value in _scalars(stamps).items():
            merged.setdefault(name, {})[key] = value
        if len(stamps.launch) > 1:
            program = _program(stamps)
            took = stamps.steps["end_ns"] - stamps.steps["begin_ns"]
            durations = {
                "input": inputs,
                "step": took,
                "waited": stamps.waited,
                "moving": exposed(stamps)[0].sum(axis=2),
            }
            of_replayed = {name: of_steps[1:] for name, of_steps in durations.items()}
            cycles.append(Cycle(key=key, replay=program, **of_replayed))
            programs[key] = program
            on_wire[key] = stamps.together[1:].mean(axis=(0, 1))
    return ShardedBlocks(cycles=tuple(cycles), merged=merged, sent=sent, programs=programs, on_wire=on_wire)


def unit_blocks(
    own: pl.DataFrame,
    buckets: pl.LazyFrame,
    mesh: Mesh,
    channel: ChannelOf,
    groups: Groups,
    beside: Beside = APART,
) -> list[tuple[Key, UnitStamps, Floats]]:
    """Blocks that all ranks have whole: (launch, round), stamps, and durations of input S x R."""
    n = mesh.size
    steps = own.filter((pl.col("arm") == PROBE) & pl.col("detailed")).sort(PLACE)
    rows = (
        buckets.filter((pl.col("arm") == PROBE) & pl.col("detailed") & (pl.col("unit") >= 0))
        .sort(*PLACE, "seq")
        .collect()
    )
    parts = rows.partition_by("launch", "block", as_dict=True)
    found = []
    for place, part in steps.partition_by("launch", "block", as_dict=True, maintain_order=True).items():
        mine, count = parts.get(place), part["step"].n_unique()
        if mine is None or part.height != count * n:
            continue
        width, rest = divmod(mine.height, count * n)
        if rest or not width:
            continue
        shape = (count, n, width)
        stamps = _stamps(mine, part, shape, channel, groups, beside, mesh)
        key = (int(part["launch"][0]), int(part["round"][0]))
        found.append((key, stamps, _grid(part, "input_ns", (count, n))))
    return found


def _grid(frame: pl.DataFrame, name: str, shape: tuple[int, ...]) -> Floats:
    return frame[name].to_numpy().astype(float).reshape(shape)


def _stamps(
    rows: pl.DataFrame,
    steps: pl.DataFrame,
    shape: tuple[int, int, int],
    channel: ChannelOf,
    groups: Groups,
    beside: Beside,
    mesh: Mesh,
) -> UnitStamps:
    count, n, width = shape
    keys = rows["group"].to_numpy().reshape(shape)[0]  # R x K
    first = rows.head(width)
    members: list[Members] = [
        tuple(sorted({groups(rank, int(keys[rank, k])) for rank in range(n)})) for k in range(width)
    ]
    launch, done = _grid(rows, "launch_ns", shape), _grid(rows, "done_ns", shape)
    released, finished = launch.copy(), done.copy()
    follows: dict[int, Awaited] = {}
    for k, of in enumerate(members):
        if int(first["kind"][k]) == BROADCAST and len(of) == 1:
            follows[k] = channel(()).awaited(launch[:, :, k], done[:, :, k])
            released[:, :, k] = follows[k].latest(launch[:, :, k])
            continue
        for group in of:
            ranks = list(group)
            released[:, ranks, k] = launch[:, ranks, k].max(axis=1, keepdims=True)
            finished[:, ranks, k] = done[:, ranks, k].max(axis=1, keepdims=True)
    finished = np.maximum(finished, released)
    begun, transfer = np.empty_like(launch), np.empty_like(launch)
    shared: dict[tuple[object, ...], list[int]] = {}
    for rank in range(n):
        own = tuple(next(g for g in of if rank in g) for of in members)
        shared.setdefault((own, rank if follows else 0), []).append(rank)
    over = ONE
    for ranks in shared.values():
        over = channel([int(key) for key in keys[ranks[0]]], first["kind"].to_list())
        at = over.begun(released[:, ranks[0]], finished[:, ranks[0]])
        moved = over.shares(at, finished[:, ranks[0]]).transfer
        begun[:, ranks], transfer[:, ranks] = at[:, None], moved[:, None]
    transfer, together = beside.shares(begun, finished, members, transfer)
    sent = tuple(
        Sent(
            kind=KINDS[int(kind)],
            phase=PHASES[int(phase)],
            unit=int(unit),
            bytes=int(size),
            ranks=len(of[0]),
            axis=mesh.axis_of(of[0]),
        )
        for kind, phase, unit, size, of in zip(
            first["kind"], first["phase"], first["unit"], first["bytes"], members, strict=True
        )
    )
    waited = steps.select(WAITS).to_series()
    return UnitStamps(
        launch=launch,
        done=done,
        wait=_grid(rows, "wait_ns", shape),
        resume=_grid(rows, "resume_ns", shape),
        sent=sent,
        members=tuple(members),
        channel=over,
        released=released,
        finished=finished,
        follows=follows,
        begun=begun,
        transfer=transfer,
        together=together,
        beside=beside,
        waited=waited.to_numpy().astype(float).reshape(count, n),
        steps={name: _grid(steps, name, (count, n)) for name in _OF_STEPS},
    )


def exposed(stamps: UnitStamps) -> tuple[Floats, Floats]:
    """(transfer, skew), S x R x K: what the rank waited for each collective, by what went on meanwhile."""
    low, high = np.zeros_like(stamps.wait), np.zeros_like(stamps.wait)
    before = np.full(stamps.wait.shape[:2], -np.inf)
    order = np.argsort(stamps.wait.mean(axis=(0, 1)), kind="stable")
    for k in order:
        asked = stamps.wait[:, :, k] > 0
        since = np.maximum(
            stamps.wait[:, :, k], before
        )  # a window in which it waited for several counts once
        until = np.maximum(np.minimum(stamps.resume[:, :, k], stamps.finished[:, :, k]), since)
        low[:, :, k], high[:, :, k] = np.where(asked, since, 0.0), np.where(asked, until, 0.0)
        before = np.where(asked, np.maximum(before, until), before)
    transfer = _moving(stamps, low, high)
    return transfer, np.maximum(high - low - transfer, 0.0)


def _moving(stamps: UnitStamps, low: Floats, high: Floats) -> Floats:
    """S x R x Q: for how long data move between two times, of the rank's collectives and of others over its link."""
    return stamps.beside.moving(stamps.begun, stamps.finished, stamps.members, low, high)


def _scalars(stamps: UnitStamps) -> dict[str, float]:
    """Block means of quantities that need all ranks together, ns."""
    transfer, skew = exposed(stamps)
    ends = stamps.finished.max(axis=(1, 2), keepdims=True) + np.zeros_like(stamps.wait[:, :, :1])
    values = {
        "busy": _moving(stamps, np.zeros_like(ends), ends).mean(),
        "span": (stamps.finished - stamps.begun).sum(axis=2).mean(),
        "least": _least(stamps),
        "bucket_transfer": transfer.sum(axis=2).mean(),
        "bucket_skew": skew.sum(axis=2).mean(),
        "bucket_wait": stamps.waited.mean(),
        "buffer_transfer": 0.0,
        "buffer_skew": 0.0,
        "bucket_enqueue": 0.0,
        "exposed_enqueue": 0.0,
    }
    values["exposed_transfer"], values["exposed_skew"] = values["bucket_transfer"], values["bucket_skew"]
    values["exposed_all"] = values["bucket_wait"]
    for index, names in enumerate(by_kind(stamps.sent)):
        places = list(names)
        values[f"kind.{index}.transfer"] = stamps.together[:, :, places].sum(axis=2).mean()
        values[f"kind.{index}.exposed_transfer"] = transfer[:, :, places].sum(axis=2).mean()
        values[f"kind.{index}.exposed_skew"] = skew[:, :, places].sum(axis=2).mean()
    return {name: float(value) for name, value in values.items()}


def _least(stamps: UnitStamps) -> float:
    """The shortest duration of each collective on any one rank of its communicator, summed, mean over ranks."""
    took = stamps.done - np.maximum(stamps.launch, np.minimum(stamps.begun, stamps.done))
    least = took.copy()
    for k, of in enumerate(stamps.members):
        for group in of:
            ranks = list(group)
            least[:, ranks, k] = took[:, ranks, k].min(axis=1, keepdims=True)
    return float(least.sum(axis=2).mean())


def _program(stamps: UnitStamps) -> Program:
    """The block's steps from the second on, as what every rank did by itself between its waits."""
    steps, ranks, width = stamps.launch.shape
    marks = _marks(stamps)
    ended = _ended(stamps)  # S x R
    resumed, origin = ended[:-1].copy(), ended[:-1].max(axis=1, keepdims=True)
    own = np.zeros((steps - 1, ranks, len(marks)))
    lag = np.zeros((steps - 1, ranks, width))
    for place, mark in enumerate(marks):
        k = mark.collective
        at = (stamps.wait if mark.waits else stamps.launch)[1:, :, k]
        own[:, :, place] = np.maximum(at - resumed, 0.0)
        if mark.waits:
            came = np.maximum(at, resumed)
            went = np.maximum(stamps.resume[1:, :, k], came)
            lag[:, :, k] = went - np.maximum(came, stamps.finished[1:, :, k])
            resumed = went
    return Program(
        marks=marks,
        own=own,
        transfer=stamps.transfer[1:],
        lag=lag,
        members=stamps.members,
        channel=stamps.channel,
        start=ended[:-1] - origin,
        follows={k: awaited.after_the_first for k, awaited in stamps.follows.items()},
        beside=stamps.beside,
    )


def _ended(stamps: UnitStamps) -> Floats:
    """S x R: when each rank went on after its last wait."""
    result: Floats = stamps.resume.max(axis=2)
    return result


def _marks(stamps: UnitStamps) -> tuple[Mark, ...]:
    """Launches and waits in the order of their mean times since the step's first launch.

    Of several waits that share a window, the collective that ends last comes first: the others are then over.
    """
    origin = stamps.launch[:, :, :1]
    launch = (stamps.launch - origin).mean(axis=(0, 1))
    wait = (stamps.wait - origin).mean(axis=(0, 1))
    done = (stamps.finished - origin).mean(axis=(0, 1))
    found = [((launch[k], 0, 0.0), Mark(waits=False, collective=k)) for k in range(len(launch))]
    found += [
        ((max(wait[k], launch[k]), 1, -done[k]), Mark(waits=True, collective=k))
        for k in range(len(launch))
        if stamps.wait[:, :, k].min() > 0
    ]
    return tuple(mark for _, mark in sorted(found, key=lambda item: item[0]))


def simulated(
    program: Program,
    sent: Sequence[Sent],
    alone: Turns,
    stretch: Mapping[str, Floats],
    transfer: Floats,
) -> float:
    """Closure's step, ns: own times of a mesh of one rank, stretched, and transfers of collectives sent alone.

    `stretch`: by phase, R; `transfer`: K.
    """
    place = {turn: index for index, turn in enumerate(alone.names)}
    ranks = program.own.shape[1]
    own = program.own.mean(axis=0)  # R x M; kept where one rank alone has no such mark
    resumed = np.zeros(ranks)
    for index, mark in enumerate(program.marks):
        one = sent[mark.collective]
        turn = place.get((one.kind, one.phase, one.unit))
        if turn is None:
            continue
        at = alone.at[:, turn, int(mark.waits)]
        factor = stretch[one.phase] if index else np.ones(ranks)
        own[:, index] = np.maximum(at - resumed, 0.0) * factor
        if mark.waits:
            resumed = np.maximum(resumed, at)
    replay = Program(
        marks=program.marks,
        own=own[None],
        transfer=program.of_groups(transfer),
        lag=np.zeros((1, ranks, len(transfer))),
        members=program.members,
        channel=program.channel,
        start=np.zeros((1, ranks)),
        beside=program.beside,
    )
    return float(replay.period()[0])


def turns(own: pl.DataFrame, buckets: pl.LazyFrame, n: int, arm: str) -> dict[Key, Turns]:
    """By round: when each unit had its turns over a mesh of one rank, mean over the steps of a block but the first.

    Times count from the last turn of the step before.
    """
    rows = (
        buckets.filter((pl.col("arm") == arm) & (pl.col("unit") >= 0) & (pl.col("wait_ns") > 0))
        .select(*PLACE, "round", "seq", "kind", "phase", "unit", "ready_ns", "wait_ns")
        .sort(*PLACE, "seq")
        .collect()
    )
    steps = own.filter((pl.col("arm") == arm) & pl.col("detailed"))
    phases = steps.group_by("launch", "round", "rank").agg(*[e.mean() for e in DURATIONS])
    found: dict[Key, Turns] = {}
    for part in rows.partition_by("launch", "block", maintain_order=True):
        count = part["step"].n_unique()
        width, rest = divmod(part.height, count * n)
        if rest or count < 2 or part["rank"].n_unique() != n:
            continue
        at = np.stack([_grid(part, name, (count, n, width)) for name in ("ready_ns", "wait_ns")], axis=-1)
        ended = at[:, :, :, 1].max(axis=2)[:-1]
        key = (int(part["launch"][0]), int(part["round"][0]))
        mine = phases.filter((pl.col("launch") == key[0]) & (pl.col("round") == key[1])).sort("rank")
        first = part.head(width)
        found[key] = Turns(
            names=tuple(
                (KINDS[kind], PHASES[phase], unit)
                for kind, phase, unit in first.select("kind", "phase", "unit").iter_rows()
            ),
            at=(at[1:] - ended[:, :, None, None]).mean(axis=0),
            phases={name: mine[name].to_numpy() for name in ("forward", "compute")},
        )
    return found
