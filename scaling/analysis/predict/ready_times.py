"""When each bucket and each parameter's gradient is ready, measured in ddp_solo."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import PHASES, TrialRecords
from scaling.analysis.predict.buckets import Buckets, Gradients, pieces
from scaling.analysis.statistics.rounds import Floats, Means, UnknownQuantityError
from scaling.records.frames import Frame, in_memory
from scaling.records.tables import Tables
from scaling.settings.plan import Trial

OWN_PHASES = PHASES[:-1]
"""Phases that a rank spends by itself; `exposed` depends on the others."""


def per_parameter(tables: Tables, records: TrialRecords) -> dict[str, Floats]:
    """`parameter.<i>`: ready since the step's begin, mean over ranks."""
    of_rounds = _parameters(tables, records.trial).group_by("launch", "round", "index")
    mean = in_memory(of_rounds.agg(pl.col("ready_ns").mean()))
    found = {}
    for (index,), part in mean.partition_by("index", as_dict=True).items():
        keys = zip(part["launch"], part["round"], strict=True)
        found[f"parameter.{index}"] = records.per_round(dict(zip(keys, part["ready_ns"], strict=True)))
    return found


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
) -> tuple[Buckets, Gradients]:
    """When each bucket and each parameter's gradient is ready, as a fraction of the last micro-step's backward.

    `phases`: of ddp_solo, mean over ranks, S.
    """
    last = phases["compute"] / micro_steps
    begin = phases["input"] + phases["forward"] + phases["compute"] - last

    def part(name: str) -> Floats:
        found: Floats = np.clip((means[name] - begin) / last, 0.0, 1.0)
        return found

    reduced = records.gradients[: sum(name.startswith("bucket.") for name in means)]
    if not reduced:
        raise UnknownQuantityError("ready")
    of_buckets = np.stack([part(f"bucket.{k}") for k in range(len(reduced))], axis=-1)
    buckets = Buckets(sizes=reduced, ready=of_buckets)
    of_parameters = _parameters(tables, records.trial).select("index", "bytes").unique()
    sizes = in_memory(of_parameters).sort("index")["bytes"].to_list()
    if not sizes:
        return buckets, pieces(buckets)
    ready_at = np.stack([part(f"parameter.{i}") for i in range(len(sizes))], axis=-1)
    return buckets, Gradients(sizes=tuple(sizes), ready=ready_at)
