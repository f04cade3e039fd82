"""Assign parameters to DDP's buckets, from when their gradients are ready.

DDP fills buckets in the order in which gradients came in its first step: a bucket is closed by the
parameter that brings it to its limit, and the first may have a limit of its own (torch,
csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and Reducer::rebuild_buckets).

When each bucket and each parameter's gradient is ready, measured in ddp_solo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.statistics.rounds import Floats, Means, UnknownQuantityError
from scaling.records.tables import Frame, Tables, in_memory
from scaling.settings.plan import Trial
from scaling.settings.run import DEFAULT_BUCKET_MB

FIRST_BUCKET_BYTES = 2**20
"""Limit of the first bucket where DDP is not given one (torch.distributed._DEFAULT_FIRST_BUCKET_BYTES)."""
PIECES = 16
"""Where single parameters are not known, a bucket counts as this many equal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Gradients of P parameters in any order, or those of K buckets in the order of reduction."""

    sizes: tuple[int, ...]
    """Bytes."""
    ready: Floats
    """S x P or S x K: the part of backward at which each is ready."""
    exact: bool = True
    """False if pieces of the measured buckets stand for parameters."""

    def part(self, stretch: slice) -> Gradients:
        """A stretch of the S."""
        return replace(self, ready=self.ready[stretch])


def assign(sizes: Sequence[int], bucket_cap_mb: float) -> list[list[int]]:
    """Indices of each bucket's parameters; `sizes` are bytes in the order in which gradients are ready."""
    cap = bucket_cap_mb * 2**20
    limit = FIRST_BUCKET_BYTES if bucket_cap_mb == DEFAULT_BUCKET_MB else cap
    buckets: list[list[int]] = [[]]
    filled = 0
    for index, size in enumerate(sizes):
        buckets[-1].append(index)
        filled += size
        if filled >= limit:
            buckets.append([])
            filled, limit = 0, cap
    return [members for members in buckets if members]


def bucketed(gradients: Gradients, bucket_cap_mb: float) -> Gradients:
    """The buckets that DDP makes at this cap, MiB."""
    order = np.argsort(gradients.ready[0], kind="stable")
    sizes = [gradients.sizes[i] for i in order]
    members = assign(sizes, bucket_cap_mb)
    ready = np.stack([gradients.ready[:, order[m]].max(axis=1) for m in members], axis=-1)
    return Gradients(sizes=tuple(sum(sizes[i] for i in m) for m in members), ready=ready)


def pieces(buckets: Gradients) -> Gradients:
    """Gradients spread evenly between one bucket's end and the next, where only buckets are known."""
    sizes: list[int] = []
    ready: list[Floats] = []
    before = np.zeros_like(buckets.ready[:, 0])
    for k, size in enumerate(buckets.sizes):
        whole, rest = divmod(size, PIECES)
        at = buckets.ready[:, k]
        for piece in range(PIECES):
            sizes.append(whole + (rest if piece == PIECES - 1 else 0))
            ready.append(before + (at - before) * (piece + 1) / PIECES)
        before = at
    return Gradients(sizes=tuple(sizes), ready=np.stack(ready, axis=-1), exact=False)


def per_parameter(tables: Tables, records: TrialRecords) -> dict[str, Floats]:
    """`parameter.<i>`: ready since the step's begin, mean over ranks."""
    of_rounds = _parameters(tables, records.trial).group_by("launch", "round", "index")
    mean = in_memory(of_rounds.agg(pl.col("ready_ns").mean()))
    parts = mean.partition_by("index", as_dict=True).items()
    return {f"parameter.{index}": records.column(part, "ready_ns") for (index,), part in parts}


def _parameters(tables: Tables, trial: Trial) -> Frame:
    """Ready times of parameters in the first sub-group."""
    n = trial.world_size
    return tables.parameters.filter((pl.col("world_size") == n) & (pl.col("rank") < n))


def per_bucket(records: TrialRecords) -> dict[str, Floats]:
    """`bucket.<k>`: ready since the step's begin, mean over ranks."""
    count = max((solo["ready"].shape[1] for solo in records.solo.values()), default=0)
    return {
        f"bucket.{k}": records.per_round(
            {
                key: float(solo["ready"][:, k].mean())
                for key, solo in records.solo.items()
                if solo["ready"].shape[1] == count
            }
        )
        for k in range(count)
    }


def ready(
    tables: Tables, records: TrialRecords, means: Means, phases: Mapping[str, Floats], micro_steps: int
) -> tuple[Gradients, Gradients]:
    """When each bucket and each parameter's gradient is ready, as a fraction of the last micro-step's backward.

    `phases`: of ddp_solo, mean over ranks, S.
    """
    last = phases["compute"] / micro_steps
    begin = phases["input"] + phases["forward"] + phases["compute"] - last

    def part(name: str) -> Floats:
        fraction: Floats = np.clip((means[name] - begin) / last, 0.0, 1.0)
        return fraction

    reduced = records.gradients[: sum(name.startswith("bucket.") for name in means)]
    if not reduced:
        raise UnknownQuantityError("ready")
    of_buckets = np.stack([part(f"bucket.{k}") for k in range(len(reduced))], axis=-1)
    buckets = Gradients(sizes=reduced, ready=of_buckets)
    of_parameters = _parameters(tables, records.trial).select("index", "bytes").unique()
    sizes = in_memory(of_parameters).sort("index")["bytes"].to_list()
    if not sizes:
        return buckets, pieces(buckets)
    ready_at = np.stack([part(f"parameter.{i}") for i in range(len(sizes))], axis=-1)
    return buckets, Gradients(sizes=tuple(sizes), ready=ready_at)
