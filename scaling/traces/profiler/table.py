"""Steps of all ranks as one table, and means with intervals over steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.results.measured import Measured
from scaling.analysis.statistics.rounds import student
from scaling.traces.profiler.jobs import TracedRanks
from scaling.traces.profiler.match import Matched, shared_steps, split

STEPS_MIN = 5
"""With fewer steps there is no interval."""

Floats = NDArray[np.float64]


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
    whole = all(np.isfinite(matched.released[r]).all() for r in ranks) and any(
        len(matched.released[r]) for r in ranks
    )
    for rank, file in job.ranks.items():
        parts = file.parts
        # Without a common step, each rank's first ones are used, as many as all ranks have.
        at = [parts.labels.index(s) for s in shared] or list(
            range(min(len(f.parts.labels) for f in job.ranks.values()))
        )
        own = dict(parts.columns)
        if whole:
            own["moved"], own["waited"] = split(
                parts.exposed, parts.collectives, matched.released[rank], parts.borders
            )
        for name, values in own.items():
            columns[name].append(values[at] / 1e6)
    return Table(ranks=ranks, columns={name: np.stack(rows) for name, rows in columns.items()})
