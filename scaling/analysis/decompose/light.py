"""Probe blocks without details: what each rank does by itself in a step, and what it waits for the others.

Such a step has the stamps of its phases and of its waits, and none of single collectives, so it is a step as it is
without any stamps. Steps of synchronous training take equally long on all ranks. What a rank does not wait it does by
itself, and the rank with the longest time of its own is the one that the others wait for:

    own time = step - waits           lead of some ranks = mean of (largest own time - largest own time of the others)

The lead is what the step would be shorter by if these ranks were as fast as the others, where the link was not what
everybody waited for. The wait of the rank that waits least is the data's alone, up to where ranks are late by turns.

Arrays: S steps, R ranks; times in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.analysis.decompose.quantities import ELSEWHERE, WAIT, Key, TrialRecords
from scaling.analysis.results.verdicts import NOTABLE
from scaling.analysis.statistics.rounds import Floats
from scaling.records.frames import ITS_PART, Frame, few_rounds, in_order
from scaling.settings.schedule import PROBE

_VALUES = {
    "length": pl.col("end_ns") - pl.col("begin_ns"),
    "behind": pl.col("sync_end_ns") - pl.col("compute_end_ns") + pl.col("earlier_wait_ns"),
    "buffers": pl.col("buffer_wait_ns"),
    "inside": pl.col("forward_wait_ns") + pl.col("backward_wait_ns") + ELSEWHERE,
    "begin": pl.col("buffer_begin_ns"),
    "end": pl.col("buffer_end_ns"),
}
"""A step, what it waits behind backward, for buffers and elsewhere; and its last broadcast."""
_COMPUTED = pl.col("backward_ns") - WAIT
"""Backward without its waits."""
_STEPPED = pl.col("optimizer_ns") - pl.col("optimizer_wait_ns")


def queue_waits(steps: Frame) -> Frame:
    """The steps of devices with one work queue, where a collective that waits for a late rank holds up kernels too.

    Stamps tell such waits from compute by other ranks alone: of backward, and of what is behind it where a loop waits
    for its gradients there, what a rank takes longer than the quickest one counts as waiting.
    """

    def beyond(computed: pl.Expr) -> pl.Expr:
        longer = computed - computed.min().over("launch", "round", "block", "step")
        return pl.when(pl.col("arm") == PROBE).then(longer).otherwise(0)

    behind = pl.when(pl.col("optimizer_wait_ns") > 0).then(_STEPPED).otherwise(0)
    return steps.with_columns(
        backward_wait_ns=pl.col("backward_wait_ns") + beyond(_COMPUTED),
        optimizer_wait_ns=pl.col("optimizer_wait_ns") + beyond(behind),
    )


def waits_look_like_compute(steps: Frame, n: int) -> bool:
    """Whether ranks take equally long by themselves only because of what `queue_waits` takes for waiting.

    Nobody may have seen whether a collective's stream shares the work queue of the kernels that compute. Where it does,
    who waits for a late rank computes for longer in backward by just as much as that rank is late elsewhere.
    """
    seen, without = read_light(steps, n), read_light(queue_waits(steps), n)
    if seen is None or without is None:
        return False
    apart = [np.ptp(np.median(np.concatenate([*light.own_ns.values()]), axis=0)) for light in (seen, without)]
    step = float(np.median(np.concatenate([*seen.own_ns.values()])))
    return bool(apart[0] < apart[1] / 2 and apart[1] > NOTABLE * step)


SLOW, FEW, STEPS_MIN = 3.0, 0.1, 10
"""A step is slow if a rank exceeds its own median by SLOW times what all steps but a share of FEW exceed it by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Light:
    """The steps of one trial that all ranks recorded, by (launch, round)."""

    own_ns: Mapping[Key, Floats]
    """S x R."""
    waited: Mapping[Key, Floats]
    """R: mean over the steps."""
    alike: Mapping[Key, float]
    """What every rank waits at least, mean over the steps.

    At each place the wait of the rank that waits least; for buffers from when the last rank has come, since a root that
    is done before that waits for nobody.
    """

    def without_single_slow(self) -> Light:
        """These steps without the few in which a rank takes far longer than it does in others (SLOW, FEW).

        A pause of the machine says nothing about the rank that it hits, and one is enough to hide a rank that is late
        in every step. What is slow more often stays.
        """
        if sum(map(len, self.own_ns.values())) < STEPS_MIN:
            return self
        every = np.concatenate(list(self.own_ns.values()))
        usual = np.median(every, axis=0)
        more = (every - usual).max(axis=1)
        slow = SLOW * float(np.quantile(more, 1 - FEW))
        kept = {key: steps[(steps - usual).max(axis=1) <= slow] for key, steps in self.own_ns.items()}
        return replace(self, own_ns={key: steps for key, steps in kept.items() if len(steps)})

    def changed(self, change: Callable[[Key, Floats], Floats]) -> Light:
        """These steps with other own times."""
        return replace(self, own_ns={key: change(key, ns) for key, ns in self.own_ns.items()})


def read_light(steps: Frame, n: int) -> Light | None:
    """None where no block is whole, or where no wait was stamped. `steps`: of `n` ranks together."""
    if n < 2:
        return None
    chosen = (pl.col("arm") == PROBE) & ~pl.col("detailed") & (pl.col("round") >= 0)
    needed = sorted({name for value in _VALUES.values() for name in value.meta.root_names()})
    rows = steps.filter(chosen).select("launch", "round", "block", "step", "rank", *needed, ITS_PART)
    own_ns: dict[Key, list[Floats]] = {}
    waited: dict[Key, list[Floats]] = {}
    alike: dict[Key, list[Floats]] = {}
    for some, _ in few_rounds(rows, rows.clear()):
        for key, grid in grids_of(some, n, _VALUES):
            total = grid["behind"] + grid["buffers"] + grid["inside"]
            late = np.minimum(grid["end"], grid["begin"].max(axis=1, keepdims=True)) - grid["begin"]
            for_data = (grid["behind"], grid["buffers"] - np.maximum(late, 0.0), grid["inside"])
            own_ns.setdefault(key, []).append(grid["length"] - total)
            waited.setdefault(key, []).append(total)
            alike.setdefault(key, []).append(np.sum([wait.min(axis=1) for wait in for_data], axis=0))
    if not any(each.any() for blocks in waited.values() for each in blocks):
        return None
    return Light(
        own_ns={key: np.concatenate(blocks) for key, blocks in own_ns.items()},
        waited={key: np.concatenate(blocks).mean(axis=0) for key, blocks in waited.items()},
        alike={key: float(np.concatenate(blocks).mean()) for key, blocks in alike.items()},
    )


def grids_of(
    steps: pl.DataFrame, n: int, values: Mapping[str, pl.Expr]
) -> list[tuple[Key, dict[str, Floats]]]:
    """Values of each block that all ranks have whole, S x R by name, in the order of launches and blocks."""
    grids = []
    ordered = in_order(
        steps.select("launch", "round", "block", "step", "rank", **values),
        ("launch", "block", "step", "rank"),
    )
    for part in ordered.partition_by("launch", "block", maintain_order=True):
        if part.height == part["step"].n_unique() * n and part["rank"].n_unique() == n:
            key = (int(part["launch"][0]), int(part["round"][0]))
            grids.append((key, {name: part[name].to_numpy().astype(float).reshape(-1, n) for name in values}))
    return grids


def lead(own_ns: Floats, ranks: Collection[int]) -> float:
    """By how much the latest of all ranks has more own time than the latest of the others, mean over the steps."""
    others: NDArray[np.intp] = np.setdiff1d(np.arange(own_ns.shape[1]), list(ranks))
    return float((own_ns.max(axis=1) - own_ns[:, others].max(axis=1)).mean())


def waits(records: TrialRecords) -> dict[str, Floats]:
    """Where no details tell data from late ranks: `exposed_transfer` is what every rank waits, `exposed_skew` the rest.

    One value a round; `exposed_all` is both.
    """
    light = records.light
    assert light is not None
    whole = records.per_round({key: float(waited.mean()) for key, waited in light.waited.items()})
    alike = records.per_round(dict(light.alike))
    return {"exposed_all": whole, "exposed_transfer": alike, "exposed_skew": whole - alike}
