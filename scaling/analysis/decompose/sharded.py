"""Detailed blocks that say of every collective where ranks wait for it: those of sharded modules, and of SyncBatchNorm.

A rank is exposed only in the windows that the strategy stamps: before a unit's forward and backward, in a norm, and
where gradients are reduced. In a window, until the collective that it waits for is done, instants in which any of the
rank's collectives moves data are exposed transfer, the others exposed skew. What is left of the window is the
strategy's own.

They give block means, each block's steps as a program, and, from when units have their turns over a mesh of one rank,
the step that closure puts together.

Arrays: S steps, R ranks, K collectives of a step in the order of launch, T turns, M marks; times in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.detailed import BROADCAST
from scaling.analysis.decompose.quantities import DURATIONS, WAITS, Cycle, Key, Sent, by_kind
from scaling.analysis.network.channel import ONE, Awaited, Channel
from scaling.analysis.network.replay import Mark, Program
from scaling.analysis.network.shared_link import Members, Served, SharedLink, over_groups
from scaling.analysis.statistics.rounds import Floats
from scaling.settings.parallel import Mesh
from scaling.settings.run import KINDS
from scaling.settings.schedule import PHASES, PROBE

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
    finished: Floats
    """The latest end of a collective's ranks; of one that follows its data, the rank's own."""
    follows: Mapping[int, Awaited]
    """The collectives that follow their data."""
    begun: Floats
    transfer: Floats
    """What each would take if its group had its wire alone."""
    together: Floats
    """What all groups of the collective have of their wire."""
    beside: SharedLink
    waited: Floats
    """S x R: all windows together, by the steps' own stamps."""
    steps: dict[str, Floats]
    """S x R: the fields of the steps' rows, by name."""


_OF_UNITS = (pl.col("arm") == PROBE) & pl.col("detailed") & (pl.col("unit") >= 0)
"""Collectives of units in detailed steps."""


def has_units(buckets: pl.LazyFrame) -> bool:
    """Whether some detailed step says where its ranks wait for a collective: a sharded module's, or one with norms."""
    return not buckets.filter(_OF_UNITS & (pl.col("wait_ns") > 0)).head(1).collect().is_empty()


def unit_blocks(
    step_rows: pl.DataFrame, buckets: pl.LazyFrame, mesh: Mesh, served: Served
) -> list[tuple[Key, UnitStamps]]:
    """Blocks that all ranks have whole: (launch, round), and stamps."""
    n = mesh.size
    steps = step_rows.filter((pl.col("arm") == PROBE) & pl.col("detailed")).sort(PLACE)
    rows = buckets.filter(_OF_UNITS).sort(*PLACE, "seq").collect()
    parts = rows.partition_by("launch", "block", as_dict=True)
    blocks = []
    for place, part in steps.partition_by("launch", "block", as_dict=True, maintain_order=True).items():
        mine, count = parts.get(place), part["step"].n_unique()
        if mine is None or part.height != count * n:
            continue
        width, rest = divmod(mine.height, count * n)
        if rest or not width:
            continue
        key = (int(part["launch"][0]), int(part["round"][0]))
        blocks.append((key, _stamps(mine, part, (count, n, width), served, mesh)))
    return blocks


def grid(frame: pl.DataFrame, name: str, shape: tuple[int, ...]) -> Floats:
    """A column of sorted rows as an array."""
    return frame[name].to_numpy().astype(float).reshape(shape)


def _stamps(
    rows: pl.DataFrame, steps: pl.DataFrame, shape: tuple[int, int, int], served: Served, mesh: Mesh
) -> UnitStamps:
    count, n, width = shape
    keys = rows["group"].to_numpy().reshape(shape)[0]  # R x K
    first = rows.head(width)
    members: list[Members] = [
        tuple(sorted({served.groups(rank, int(keys[rank, k])) for rank in range(n)})) for k in range(width)
    ]
    launch, done = grid(rows, "launch_ns", shape), grid(rows, "done_ns", shape)
    handed = np.maximum(launch, grid(rows, "start_ns", shape))
    released, finished = handed.copy(), done.copy()
    follows: dict[int, Awaited] = {}
    for k, groups in enumerate(members):
        if int(first["kind"][k]) == BROADCAST and len(groups) == 1:
            follows[k] = served.channel((), ()).awaited(launch[:, :, k], done[:, :, k])
            released[:, :, k] = follows[k].latest(launch[:, :, k])
        else:
            released[:, :, k] = over_groups(handed[:, :, k], groups, np.max)
            finished[:, :, k] = over_groups(done[:, :, k], groups, np.max)
    finished = np.maximum(finished, released)
    begun, transfer = np.empty_like(launch), np.empty_like(launch)
    shared: dict[tuple[object, ...], list[int]] = {}
    for rank in range(n):
        groups_of_rank = tuple(next(g for g in groups if rank in g) for groups in members)
        shared.setdefault((groups_of_rank, rank if follows else 0), []).append(rank)
    over = ONE
    for ranks in shared.values():
        over = served.channel([int(key) for key in keys[ranks[0]]], first["kind"].to_list())
        at = over.begun(released[:, ranks[0]], finished[:, ranks[0]])
        moved = over.shares(at, finished[:, ranks[0]]).transfer
        begun[:, ranks], transfer[:, ranks] = at[:, None], moved[:, None]
    # On accelerators a group moves data at the pace of its rank that shares its wire with most others. The others of
    # the group, whose wires are theirs alone, would take that pace for a longer transfer.
    for k, groups in enumerate(members if over.fifo else ()):
        if k not in follows:
            transfer[:, :, k] = over_groups(transfer[:, :, k], groups, np.min)
    transfer, together = served.beside.shares(begun, finished, members, transfer)
    calls = first.select("kind", "phase", "unit", "bytes").iter_rows()
    sent = tuple(
        Sent(
            kind=KINDS[kind],
            phase=PHASES[phase],
            unit=unit,
            bytes=size,
            ranks=len(groups[0]),
            axis=mesh.axis_of(groups[0]),
        )
        for (kind, phase, unit, size), groups in zip(calls, members, strict=True)
    )
    return UnitStamps(
        launch=launch,
        done=done,
        wait=grid(rows, "wait_ns", shape),
        resume=grid(rows, "resume_ns", shape),
        sent=sent,
        members=tuple(members),
        channel=over,
        finished=finished,
        follows=follows,
        begun=begun,
        transfer=transfer,
        together=together,
        beside=served.beside,
        waited=grid(steps.select(waited=WAITS), "waited", (count, n)),
        steps={name: grid(steps, name, (count, n)) for name in _OF_STEPS},
    )


def exposed(stamps: UnitStamps) -> tuple[Floats, Floats]:
    """(transfer, skew), S x R x K: what the rank waited for each collective, by what went on meanwhile."""
    low, high = np.zeros_like(stamps.wait), np.zeros_like(stamps.wait)
    before = np.full(stamps.wait.shape[:2], -np.inf)
    order = np.argsort(stamps.wait.mean(axis=(0, 1)), kind="stable")
    for k in order:
        asked = stamps.wait[:, :, k] > 0
        since = np.maximum(stamps.wait[:, :, k], before)  # a window shared by several waits counts once
        until = np.maximum(np.minimum(stamps.resume[:, :, k], stamps.finished[:, :, k]), since)
        low[:, :, k], high[:, :, k] = np.where(asked, since, 0.0), np.where(asked, until, 0.0)
        before = np.where(asked, np.maximum(before, until), before)
    transfer = moving(stamps, low, high)
    return transfer, np.maximum(high - low - transfer, 0.0)


def moving(stamps: UnitStamps, low: Floats, high: Floats) -> Floats:
    """S x R x Q: for how long data move between two times, of the rank's collectives and of others over its link."""
    return stamps.beside.moving(stamps.begun, stamps.finished, stamps.members, low, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedBlocks:
    """What the detailed blocks of a trial say."""

    cycles: tuple[Cycle, ...]
    merged: dict[str, dict[Key, float]]
    sent: tuple[Sent, ...]
    programs: dict[Key, Program]
    """A block's steps as one program of means, for closure."""


def read_sharded(step_rows: pl.DataFrame, buckets: pl.LazyFrame, mesh: Mesh, served: Served) -> ShardedBlocks:
    """Cycles, block means, and the list of collectives, all of one mesh."""
    cycles: list[Cycle] = []
    merged: dict[str, dict[Key, float]] = {}
    programs: dict[Key, Program] = {}
    sent: tuple[Sent, ...] = ()
    for key, stamps in unit_blocks(step_rows, buckets, mesh, served):
        sent = stamps.sent
        for name, value in _scalars(stamps).items():
            merged.setdefault(name, {})[key] = value
        if len(stamps.launch) > 1:
            program = _program(stamps)
            durations = {
                "input": stamps.steps["input_ns"],
                "step": stamps.steps["end_ns"] - stamps.steps["begin_ns"],
                "waited": stamps.waited,
                "moving": exposed(stamps)[0].sum(axis=2),
            }
            of_replayed = {name: of_steps[1:] for name, of_steps in durations.items()}
            cycles.append(Cycle(key=key, replay=program, **of_replayed))
            programs[key] = program
    return ShardedBlocks(cycles=tuple(cycles), merged=merged, sent=sent, programs=programs)


def _scalars(stamps: UnitStamps) -> dict[str, float]:
    """Block means of quantities that need all ranks together, ns."""
    transfer, skew = exposed(stamps)
    ends = stamps.finished.max(axis=(1, 2), keepdims=True) + np.zeros_like(stamps.wait[:, :, :1])
    values = {
        "busy": moving(stamps, np.zeros_like(ends), ends).mean(),
        "span": (stamps.finished - stamps.begun).sum(axis=2).mean(),
        "least": _least(stamps),
        "bucket_transfer": transfer.sum(axis=2).mean(),
        "bucket_skew": skew.sum(axis=2).mean(),
        "bucket_enqueue": 0.0,
        "exposed_all": stamps.waited.mean(),
    }
    values["exposed_transfer"], values["exposed_skew"] = values["bucket_transfer"], values["bucket_skew"]
    for index, names in enumerate(by_kind(stamps.sent)):
        places = list(names)
        values[f"kind.{index}.transfer"] = stamps.together[:, :, places].sum(axis=2).mean()
        values[f"kind.{index}.exposed_transfer"] = transfer[:, :, places].sum(axis=2).mean()
        values[f"kind.{index}.exposed_skew"] = skew[:, :, places].sum(axis=2).mean()
    return {name: float(value) for name, value in values.items()}


def _least(stamps: UnitStamps) -> float:
    """The shortest duration of each collective on any one rank of its communicator, summed, mean over ranks."""
    took = stamps.done - np.maximum(stamps.launch, np.minimum(stamps.begun, stamps.done))
    for k, groups in enumerate(stamps.members):
        took[:, :, k] = over_groups(took[:, :, k], groups, np.min)
    return float(took.sum(axis=2).mean())


def _program(stamps: UnitStamps) -> Program:
    """The block's steps from the second on, as what every rank did by itself between its waits."""
    steps, ranks, width = stamps.launch.shape
    marks = _marks(stamps)
    ended: Floats = stamps.resume.max(axis=2)  # S x R: when each rank went on after its last wait
    resumed, origin = ended[:-1].copy(), ended[:-1].max(axis=1, keepdims=True)
    own_ns = np.zeros((steps - 1, ranks, len(marks)))
    lag = np.zeros((steps - 1, ranks, width))
    last, behind = _last_of_windows(stamps, marks), _behind(stamps)
    for place, mark in enumerate(marks):
        k = mark.collective
        at = (stamps.wait if mark.waits else stamps.launch)[1:, :, k]
        streamed = not mark.waits and k in behind
        own_ns[:, :, place] = np.maximum(at - (_free(stamps, k, behind[k]) if streamed else resumed), 0.0)
        if mark.waits:
            came = np.maximum(at, resumed)
            over = np.maximum(came, stamps.finished[1:, :, k])
            until = stamps.resume[1:, :, k]
            went = np.maximum(until if k in last else np.minimum(until, over), came)
            lag[:, :, k] = went - over
            resumed = went
    return Program(
        marks=marks,
        own_ns=own_ns,
        transfer=stamps.transfer[1:],
        lag=lag,
        members=stamps.members,
        channel=stamps.channel,
        start=ended[:-1] - origin,
        follows={
            k: Awaited(order=each.order[1:], count=each.count[1:]) for k, each in stamps.follows.items()
        },
        behind=behind,
        beside=stamps.beside,
    )


def _behind(stamps: UnitStamps) -> dict[int, int]:
    """All-reduces over copies, each with its unit's reduce-scatter: on accelerators their own stream waits for that."""
    scattered: dict[int, int] = {}
    earlier = {}
    for k, collective in enumerate(stamps.sent if stamps.channel.fifo else ()):
        if collective.kind == "reduce_scatter":
            scattered[collective.unit] = k
        elif collective.kind == "all_reduce" and collective.unit in scattered:
            earlier[k] = scattered[collective.unit]
    return earlier


def _free(stamps: UnitStamps, k: int, after: int) -> Floats:
    """S x R: when a stream could launch collective `k`: behind `after`, and behind its own collective before that."""
    done, communicator = stamps.done[1:], stamps.channel.communicator
    before = [j for j in range(k) if communicator and communicator[j] == communicator[k]]
    free: Floats = np.maximum(done[:, :, after], done[:, :, before[-1]]) if before else done[:, :, after]
    return free


def _last_of_windows(stamps: UnitStamps, marks: Sequence[Mark]) -> set[int]:
    """The collective for which each window is left: of waits that share one, the last.

    The others of a window are over when they are done; what goes on after that is another collective's.
    """
    last: dict[bytes, int] = {}
    for k in (mark.collective for mark in marks if mark.waits):
        window = stamps.wait[:, :, k].tobytes() + stamps.resume[:, :, k].tobytes()
        last[window] = k
    return set(last.values())


def _marks(stamps: UnitStamps) -> tuple[Mark, ...]:
    """Launches and waits in the order of their times since the step's first launch, on the rank that comes soonest.

    That rank has waited least: a launch that has its own stream comes later, among the waits, where that stream waits.
    Of several waits that share a window, the collective that ends last comes first: the others are then over.
    """
    origin = stamps.launch[:, :, :1]
    launch = (stamps.launch - origin).mean(axis=0).min(axis=0)
    wait = (stamps.wait - origin).mean(axis=0).min(axis=0)
    done = (stamps.finished - origin).mean(axis=(0, 1))
    ordered = [((launch[k], 0, 0.0), Mark(waits=False, collective=k)) for k in range(len(launch))]
    ordered += [
        ((max(wait[k], launch[k]), 1, -done[k]), Mark(waits=True, collective=k))
        for k in range(len(launch))
        if stamps.wait[:, :, k].min() > 0
    ]
    return tuple(mark for _, mark in sorted(ordered, key=lambda item: item[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The units' turns of one block over a mesh of one rank."""

    names: tuple[tuple[str, str, int], ...]
    """T: kind, phase and unit."""
    at: Floats
    """R x T x 2: launch and wait, ns since the last turn of the step before."""
    phases: dict[str, Floats]
    """R: `forward` and `compute`, ns."""


def simulated(
    program: Program, sent: Sequence[Sent], alone: Turns, stretch: Mapping[str, Floats], transfer: Floats
) -> float:
    """Closure's step, ns: own times of a mesh of one rank, stretched, and transfers of collectives sent alone.

    `stretch`: by phase, R; `transfer`: K.
    """
    place = {turn: index for index, turn in enumerate(alone.names)}
    ranks = program.own_ns.shape[1]
    own_ns = program.own_ns.mean(axis=0)  # R x M; kept where one rank alone has no such mark
    resumed = np.zeros(ranks)
    for index, mark in enumerate(program.marks):
        collective = sent[mark.collective]
        turn = place.get((collective.kind, collective.phase, collective.unit))
        if turn is None:
            continue
        at = alone.at[:, turn, int(mark.waits)]
        factor = stretch[collective.phase] if index else np.ones(ranks)
        own_ns[:, index] = np.maximum(at - resumed, 0.0) * factor
        if mark.waits:
            resumed = np.maximum(resumed, at)
    return program.at_times(own_ns, transfer)


def turns(step_rows: pl.DataFrame, buckets: pl.LazyFrame, n: int, arm: str) -> dict[Key, Turns]:
    """By round: when each unit had its turns over a mesh of one rank, mean over the steps of a block but the first.

    Times count from the last turn of the step before.
    """
    rows = (
        buckets.filter((pl.col("arm") == arm) & (pl.col("unit") >= 0) & (pl.col("wait_ns") > 0))
        .select(*PLACE, "round", "seq", "kind", "phase", "unit", "ready_ns", "wait_ns")
        .sort(*PLACE, "seq")
        .collect()
    )
    steps = step_rows.filter((pl.col("arm") == arm) & pl.col("detailed"))
    phases = steps.group_by("launch", "round", "rank").agg(*[e.mean() for e in DURATIONS])
    by_round: dict[Key, Turns] = {}
    for part in rows.partition_by("launch", "block", maintain_order=True):
        count = part["step"].n_unique()
        width, rest = divmod(part.height, count * n)
        if rest or count < 2 or part["rank"].n_unique() != n:
            continue
        at = np.stack([grid(part, name, (count, n, width)) for name in ("ready_ns", "wait_ns")], axis=-1)
        ended = at[:, :, :, 1].max(axis=2)[:-1]
        key = (int(part["launch"][0]), int(part["round"][0]))
        mine = phases.filter((pl.col("launch") == key[0]) & (pl.col("round") == key[1])).sort("rank")
        first = part.head(width)
        by_round[key] = Turns(
            names=tuple(
                (KINDS[kind], PHASES[phase], unit)
                for kind, phase, unit in first.select("kind", "phase", "unit").iter_rows()
            ),
            at=(at[1:] - ended[:, :, None, None]).mean(axis=0),
            phases={name: mine[name].to_numpy() for name in ("forward", "compute")},
        )
    return by_round
