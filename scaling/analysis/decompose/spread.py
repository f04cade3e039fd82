"""Own steps of many ranks: their distribution, and the hosts with the slowest of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from scaling.analysis.decompose.hosts import FLOOR
from scaling.analysis.results.spread import HostSteps, OwnStep, RankSpread
from scaling.analysis.statistics.rounds import MS, Floats, Rounds, level_of_each
from scaling.records.frames import in_memory
from scaling.records.rank_file import RankFile
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import BARE_ALL

FEW = 16
"""Up to so many ranks there is no need for a distribution."""
HOSTS, RANKS = 8, 3
"""Hosts that are named, and ranks of each."""
BINS = 40


def spread(tables: Tables, plan: Plan, *, floor: float) -> RankSpread | None:
    """None for few ranks, and where their own steps were not measured.

    `tables`: of launches that measured the largest world size. `floor`: A/A floor, a fraction.
    """
    if plan.ranks <= FEW:
        return None
    chosen = (pl.col("arm") == BARE_ALL) & (pl.col("world_size") == plan.ranks)
    took = (pl.col("end_ns") - pl.col("begin_ns")).mean()
    rows = in_memory(tables.steps.filter(chosen).group_by("launch", "round", "rank").agg(took=took))
    if rows.is_empty():
        return None
    index = rows.select("launch", "round").unique().sort("launch", "round").with_row_index("at")
    rows = rows.join(index, on=["launch", "round"])
    numbers, column = np.unique(rows["rank"].to_numpy(), return_inverse=True)
    own = np.full((index.height, len(numbers)), np.nan)
    own[rows["at"].to_numpy(), column] = rows["took"].to_numpy()
    median = np.nanmedian(own, axis=1)
    ratios = np.nanmean(own / median[:, None], axis=0)
    steps_ms = np.nanmean(own, axis=0) * MS
    rounds = _Ranks(own, median, index["launch"].to_numpy(), numbers, plan.spec.seed, max(floor, FLOOR))
    counts, edges = np.histogram(steps_ms, BINS)
    least, p5, middle, p95, most = np.percentile(steps_ms, [0, 5, 50, 95, 100]).tolist()
    return RankSpread(
        world_size=plan.ranks,
        least_ms=least,
        p5_ms=p5,
        median_ms=middle,
        p95_ms=p95,
        most_ms=most,
        slow=rounds.slow(ratios),
        edges_ms=tuple(edges.tolist()),
        counts=tuple(counts.tolist()),
        hosts=_hosts(tables.ranks, rounds, ratios),
    )


class _Ranks:
    """Own steps a round and rank, with their intervals where they are asked for."""

    def __init__(
        self, own: Floats, median: Floats, launch: np.ndarray, numbers: np.ndarray, seed: int, beyond: float
    ) -> None:
        self._own, self._median, self._beyond = own, median, beyond
        self.numbers: list[int] = numbers.tolist()
        self._rounds = Rounds({}, launch, seed=seed)
        self._level = level_of_each(len(numbers))

    def step(self, at: int) -> OwnStep | None:
        """Of a column."""
        there = np.where(np.isfinite(self._own[:, at]), self._median, np.nan)
        rounds = self._rounds.extend({"own": self._own[:, at], "median": there})
        step_ms, ratio = rounds.ratio("own", scale=MS), rounds.ratio(lambda m: m["own"] / m["median"])
        sure = rounds.ratio(lambda m: m["own"] / m["median"], level=self._level)
        if step_ms is None or ratio is None or sure is None:
            return None
        slow = sure.surely_above(1 + self._beyond)
        return OwnStep(rank=self.numbers[at], step_ms=step_ms, ratio=ratio, slow=slow)

    def slow(self, ratios: Floats) -> int:
        """How many are slower than the median rank by more than chance."""
        found = (self.step(int(at)) for at in np.flatnonzero(ratios > 1 + self._beyond))
        return sum(step is not None and step.slow for step in found)


def _hosts(files: Sequence[RankFile], rounds: _Ranks, ratios: Floats) -> tuple[HostSteps, ...]:
    """The hosts with the slowest ranks."""
    column = {rank: at for at, rank in enumerate(rounds.numbers)}
    of: dict[tuple[int, str], set[int]] = {}
    for file in files:
        if file.rank in column:
            of.setdefault((file.host, file.hostname), set()).add(column[file.rank])
    worst = sorted(of.items(), key=lambda item: -max(ratios[at] for at in item[1]))
    found = []
    for (host, hostname), columns in worst[:HOSTS]:
        slowest = sorted(columns, key=lambda at: -ratios[at])[:RANKS]
        found.append(
            HostSteps(
                host=host,
                hostname=hostname,
                ranks=len(columns),
                ratio=float(np.mean([ratios[at] for at in columns])),
                slowest=tuple(step for step in map(rounds.step, slowest) if step is not None),
            )
        )
    return tuple(found)
