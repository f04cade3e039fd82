"""Cases to results: percentiles of latency, throughput by batch with its knee, memory.

The unit is the round, as everywhere: requests that follow each other are alike, so percentiles are
of all requests and their intervals resample whole rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.analysis.analyze import Ending, quality, run_info
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    BatchTry,
    Fabric,
    Fits,
    Inference,
    LargestBatch,
    Latency,
    Measured,
    Training,
)
from scaling.analysis.stats import Floats, Rounds, drawn, interval, resampling_weights, scaled
from scaling.cases import LATENCY, THROUGHPUT, TRAINING, Case, Outcome, cases
from scaling.collect import Tables
from scaling.largest import FITS, Largest, step
from scaling.plan import Plan

KNEE = 0.95
"""The knee is the smallest batch with this share of the best throughput."""
BEYOND_MIN = 1
"""Requests that have to lie beyond a percentile, at least, for it to be one: p99 needs 100."""
BINS_MAX = 4096
"""Requests are sorted into so many bins at most before rounds are resampled: ranks to 1/4096."""

Row = TypeVar("Row", Inference, Training)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFiles:
    """What the launches left beside the rank files."""

    outcomes: tuple[Outcome, ...]
    largest: Largest | None


def analyze_cases(tables: Tables, plan: Plan, ending: Ending, files: CaseFiles) -> Analysis:
    """All of analysis.json, of a run by cases."""
    spec = plan.spec
    listed = cases(spec, files.largest.rungs() if files.largest else None)
    ended = {(o.world_size, o.case): o for o in files.outcomes}
    rows = tables.blocks.join(tables.steps, on=["launch", "rank", "block"], suffix="_step")
    inference: list[Inference] = []
    training: list[Training] = []
    for n in spec.world_sizes:
        for index, case in enumerate(listed):
            here = whole_rounds(rows.filter((pl.col("world_size") == n) & (pl.col("case") == index)), n)
            outcome = ended.get((n, index), Outcome(world_size=n, case=index, status="lost"))
            if spec.task == "inference":
                inference.append(_inference(here, n, case, outcome, spec.seed))
            else:
                training.append(_training(here, n, case, outcome, spec.seed))
    return Analysis(
        schema=SCHEMA,
        run=run_info(plan, ending),
        points=(),
        fabric=Fabric(),
        fits=Fits(),
        inference=_kneed(inference),
        verdicts=(),
        quality=quality(tables, plan, ending, (), ()),
        trials=ending.trials,
        training=_kneed(training),
        largest_batch=_largest(files.largest),
    )


def whole_rounds(rows: pl.DataFrame, n: int) -> pl.DataFrame:
    """Rows of the rounds of which all `n` ranks left theirs: without one, a sum over ranks would be too small."""
    return rows.filter(pl.col("rank").n_unique().over("launch", "round", "arm") == n)


def _inference(rows: pl.DataFrame, n: int, case: Case, outcome: Outcome, seed: int) -> Inference:
    found = Inference(
        world_size=n,
        batch=case.batch,
        precision=case.variant.precision,
        autocast=case.variant.autocast,
        compile=case.variant.compile,
        status=_status(rows, outcome),
        error=outcome.error,
    )
    if rows.is_empty():
        return found
    requests = rows.filter(pl.col("arm") == LATENCY)
    loaded = rows.filter(pl.col("arm") == THROUGHPUT)
    return dataclasses.replace(
        found,
        latency_ms=_latency(requests, seed),
        samples_per_s=_throughput(requests if loaded.is_empty() else loaded, seed),
        peak_bytes=_peak(rows),
    )


def _training(rows: pl.DataFrame, n: int, case: Case, outcome: Outcome, seed: int) -> Training:
    found = Training(
        world_size=n,
        batch=case.batch,
        accumulation_steps=case.variant.accumulation_steps,
        precision=case.variant.precision,
        checkpointing=case.variant.checkpointing,
        status=_status(rows, outcome),
        error=outcome.error,
    )
    steps = rows.filter(pl.col("arm") == TRAINING)
    if steps.is_empty():
        return found
    means = _by_round(
        steps,
        step=(pl.col("end_ns_step") - pl.col("begin_ns_step")).mean(),
        exposed=(pl.col("sync_end_ns") - pl.col("compute_end_ns")).mean(),
    )
    rounds = Rounds(means.values, means.launch, seed=seed)
    return dataclasses.replace(
        found,
        step_ms=scaled(rounds.ratio("step"), 1e-6),
        samples_per_s=rounds.ratio(lambda m: n * case.batch * 1e9 / m["step"]),
        exposed_ms=scaled(rounds.measure("exposed"), 1e-6) if n > 1 else None,
        peak_bytes=_peak(rows),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Means:
    values: dict[str, Floats]
    launch: NDArray[np.int64]


def _by_round(rows: pl.DataFrame, **means: pl.Expr) -> _Means:
    """One value a round: the mean over ranks and steps."""
    grouped = rows.group_by("launch", "round").agg(**means).sort("launch", "round")
    return _Means(
        values={name: grouped[name].to_numpy().astype(float) for name in means},
        launch=grouped["launch"].to_numpy(),
    )


def _throughput(rows: pl.DataFrame, seed: int) -> Measured | None:
    """Samples a second of all ranks: each rank's own requests over its own time, summed."""
    ranks = rows.group_by("launch", "round", "rank", "batch", "steps").agg(
        (pl.col("end_ns_step") - pl.col("begin_ns_step")).sum().alias("busy_ns")
    )
    rate = (pl.col("batch") * pl.col("steps") * 1e9 / pl.col("busy_ns")).sum()
    means = _by_round(ranks, rate=rate)
    return Rounds(means.values, means.launch, seed=seed).ratio("rate")


def _latency(rows: pl.DataFrame, seed: int) -> Latency:
    if rows.is_empty():
        return Latency()
    keys = rows.select("launch", "round").unique().sort("launch", "round").with_row_index("unit")
    found = rows.join(keys, on=["launch", "round"])
    took = (found["end_ns_step"] - found["begin_ns_step"]).to_numpy() / 1e6
    weights = resampling_weights(keys["launch"].to_numpy(), seed)
    of = drawn(keys["launch"].to_numpy())
    p50, p90, p99 = percentiles(took, found["unit"].to_numpy(), weights, (0.5, 0.9, 0.99), of)
    return Latency(p50=p50, p90=p90, p99=p99)


def percentiles(
    values: Floats,
    unit: NDArray[np.integer],
    weights: Floats,
    shares: Sequence[float],
    units_groups: tuple[int, int],
) -> list[Measured | None]:
    """The value that a share of all values is not above, with its interval.

    `unit` is each value's round, `weights` has a row a resampling (the first: as measured) and a
    column a round; `units_groups` as scaling.analysis.stats.drawn tells them. None where fewer than
    BEYOND_MIN values lie beyond.
    """
    order = np.argsort(values, kind="stable")
    parts = np.array_split(order, min(len(order), BINS_MAX))
    counts = np.stack([np.bincount(unit[part], minlength=weights.shape[1]) for part in parts], axis=1)
    top = np.array([values[part[-1]] for part in parts])
    cumulated = np.cumsum(weights @ counts, axis=1)
    found: list[Measured | None] = []
    for share in shares:
        if len(values) * (1 - share) < BEYOND_MIN - 1e-9:
            found.append(None)
            continue
        place = (cumulated < share * cumulated[:, -1:] - 1e-9).sum(axis=1)
        at = top[np.minimum(place, len(top) - 1)]
        units, groups = units_groups
        found.append(interval(float(at[0]), at[1:], units, groups=groups, positive=True))
    return found


def _status(rows: pl.DataFrame, outcome: Outcome) -> str:
    """done, or how it failed to be."""
    return "done" if not rows.is_empty() else "lost" if outcome.status == FITS else outcome.status


def _peak(rows: pl.DataFrame) -> int | None:
    """The largest rank's, over all rounds."""
    peak = rows["peak_bytes"].max()
    return int(peak) if isinstance(peak, int) and peak > 0 else None


def _kneed(rows: list[Row]) -> tuple[Row, ...]:
    """With the knee of every setting marked, where there are batches to choose from."""
    settings: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        settings.setdefault(setting(row), []).append(row)
    knees = {id(knee) for group in settings.values() if (knee := _knee(group)) is not None}
    return tuple(dataclasses.replace(row, knee=True) if id(row) in knees else row for row in rows)


def setting(row: Inference | Training) -> tuple[object, ...]:
    """What is the same in a row's neighbours that differ in batch alone."""
    own = (
        (row.compile, row.autocast)
        if isinstance(row, Inference)
        else (row.accumulation_steps, row.checkpointing)
    )
    return (row.world_size, row.precision, *own)


def _knee(group: list[Row]) -> Row | None:
    known = sorted((r for r in group if r.samples_per_s is not None), key=lambda r: r.batch)
    if len(known) < 2:
        return None
    best = max(r.samples_per_s.value for r in known if r.samples_per_s)
    knee = next(r for r in known if r.samples_per_s and r.samples_per_s.value >= KNEE * best)
    return None if knee is known[-1] else knee  # at the largest batch it has not levelled off


def _largest(largest: Largest | None) -> tuple[LargestBatch, ...]:
    if largest is None:
        return ()
    return tuple(
        LargestBatch(
            precision=item.variant.precision,
            autocast=item.variant.autocast,
            compile=item.variant.compile,
            checkpointing=item.variant.checkpointing,
            accumulation_steps=item.variant.accumulation_steps,
            limit_bytes=largest.limit_bytes,
            found=item.found,
            proved=item.proved,
            step=step(item.found, item.variant.accumulation_steps),
            tries=tuple(
                BatchTry(batch=t.batch, status=t.status, rank=t.rank, peak_bytes=t.peak_bytes)
                for t in item.tries
            ),
        )
        for item in largest.items
    )
