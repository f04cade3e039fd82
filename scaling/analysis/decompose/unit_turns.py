"""When units have their turns over a mesh of one rank, and the step that closure puts together from them.

Arrays: S steps, R ranks, K collectives of a step, T turns, M marks; times in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import DURATIONS, Key
from scaling.analysis.decompose.sent import Sent
from scaling.analysis.decompose.unit_stamps import PLACE, grid
from scaling.analysis.network.program import Program
from scaling.analysis.statistics.rounds import Floats
from scaling.spec.run import KINDS
from scaling.spec.schedule import PHASES


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
        at = np.stack([grid(part, name, (count, n, width)) for name in ("ready_ns", "wait_ns")], axis=-1)
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
