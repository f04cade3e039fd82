"""What detailed blocks with waits for single collectives say: block means, and each block's steps as a program.

Arrays: S steps, R ranks, K collectives of a step in the order of launch; times in ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import Cycle, Key, Sent, by_kind
from scaling.analysis.decompose.unit_stamps import UnitStamps, exposed, moving, unit_blocks
from scaling.analysis.network.channel import Awaited
from scaling.analysis.network.replay import Mark, Program
from scaling.analysis.network.shared_link import Served, over_groups
from scaling.analysis.statistics.rounds import Floats
from scaling.settings.parallel import Mesh


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
    for key, stamps, inputs in unit_blocks(step_rows, buckets, mesh, served):
        sent = stamps.sent
        for name, value in _scalars(stamps).items():
            merged.setdefault(name, {})[key] = value
        if len(stamps.launch) > 1:
            program = _program(stamps)
            durations = {
                "input": inputs,
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
