"""Results of runs by cases: percentiles of latency, throughput by batch with its knee, memory.

The unit is the round, as everywhere: requests that follow each other are correlated, so percentiles are over all
requests, and their intervals resample whole rounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import polars as pl

from scaling.analysis.about import Ending, quality, run_info
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Fabric,
    InferenceCase,
    LargestBatch,
    Latency,
    Measured,
    TrainingCase,
)
from scaling.analysis.statistics.resampling import drawn, resampling_weights
from scaling.analysis.statistics.rounds import MS, Rounds, percentiles
from scaling.records.tables import Tables, in_memory
from scaling.settings.cases import FITS, LATENCY, THROUGHPUT, TRAINING, Case, Largest, cases, step
from scaling.settings.plan import LEFT_OUT, Outcome, Plan

KNEE = 0.95
"""The knee is the smallest batch with this share of the best throughput."""

Row = TypeVar("Row", InferenceCase, TrainingCase)


def analyze_cases(
    tables: Tables, plan: Plan, ending: Ending, outcomes: Sequence[Outcome], largest: Largest | None
) -> Analysis:
    """The whole of analysis.json for a run by cases. `outcomes`: how the launches' cases ended."""
    spec = plan.spec
    listed = cases(spec, largest.rungs() if largest else None)
    ended = {(o.world_size, o.case): o for o in outcomes}
    rows = in_memory(tables.blocks).join(
        in_memory(tables.steps), on=["launch", "rank", "block"], suffix="_step"
    )
    inference: list[InferenceCase] = []
    training: list[TrainingCase] = []
    for n in spec.world_sizes:
        for index, case in enumerate(listed):
            here = whole_rounds(rows.filter((pl.col("world_size") == n) & (pl.col("case") == index)), n)
            planned = plan.content.holds(n) and plan.content.has_batch(case.batch)
            missing = Outcome(world_size=n, case=index, status="lost" if planned else LEFT_OUT)
            outcome = ended.get((n, index), missing)
            if spec.task == "inference":
                inference.append(_inference(here, n, case, outcome, spec.seed))
            else:
                training.append(_training(here, n, case, outcome, spec.seed))
    return Analysis(
        schema=SCHEMA,
        run=run_info(plan, ending),
        points=(),
        fabric=Fabric(),
        inference=_kneed(_with_efficiency(inference)),
        verdicts=(),
        quality=quality(tables, plan, ending, (), ()),
        trials=ending.trials,
        training=_kneed(_with_efficiency(training)),
        largest_batch=_largest(largest),
    )


def whole_rounds(rows: pl.DataFrame, n: int) -> pl.DataFrame:
    """Rows of rounds with records of all `n` ranks; with a rank missing, a sum over ranks would be too small."""
    return rows.filter(pl.col("rank").n_unique().over("launch", "round", "arm") == n)


def _case(rows: pl.DataFrame, n: int, case: Case, outcome: Outcome) -> dict[str, Any]:
    """The fields of a CaseResult that are known without measuring."""
    return {
        "world_size": n,
        "batch": case.batch,
        "precision": case.variant.precision,
        "status": "done" if not rows.is_empty() else "lost" if outcome.status == FITS else outcome.status,
        "error": outcome.error,
    }


def _inference(rows: pl.DataFrame, n: int, case: Case, outcome: Outcome, seed: int) -> InferenceCase:
    requests = rows.filter(pl.col("arm") == LATENCY)
    loaded = rows.filter(pl.col("arm") == THROUGHPUT)
    return InferenceCase(
        **_case(rows, n, case, outcome),
        autocast=case.variant.autocast,
        compile=case.variant.compile,
        latency_ms=_latency(requests, seed),
        samples_per_s=_throughput(requests if loaded.is_empty() else loaded, seed),
        peak_bytes=_peak(rows),
    )


def _training(rows: pl.DataFrame, n: int, case: Case, outcome: Outcome, seed: int) -> TrainingCase:
    rounds = _by_round(
        rows.filter(pl.col("arm") == TRAINING),
        seed,
        step=(pl.col("end_ns_step") - pl.col("begin_ns_step")).mean(),
        exposed=(pl.col("sync_end_ns") - pl.col("compute_end_ns")).mean(),
    )
    return TrainingCase(
        **_case(rows, n, case, outcome),
        accumulation_steps=case.variant.accumulation_steps,
        checkpointing=case.variant.checkpointing,
        step_ms=rounds.ratio("step", scale=MS),
        samples_per_s=rounds.ratio(lambda m: n * case.batch * 1e9 / m["step"]),
        exposed_ms=rounds.measure("exposed", scale=MS) if n > 1 else None,
        peak_bytes=_peak(rows),
    )


def _by_round(rows: pl.DataFrame, seed: int, **means: pl.Expr) -> Rounds:
    """One value a round: the mean over ranks and steps."""
    grouped = rows.group_by("launch", "round").agg(**means).sort("launch", "round")
    values = {name: grouped[name].to_numpy().astype(float) for name in means}
    return Rounds(values, grouped["launch"].to_numpy(), seed=seed)


def _throughput(rows: pl.DataFrame, seed: int) -> Measured | None:
    """Samples a second of all ranks: each rank's own requests over its own time, summed."""
    ranks = rows.group_by("launch", "round", "rank", "batch", "steps").agg(
        (pl.col("end_ns_step") - pl.col("begin_ns_step")).sum().alias("busy_ns")
    )
    rate = (pl.col("batch") * pl.col("steps") * 1e9 / pl.col("busy_ns")).sum()
    return _by_round(ranks, seed, rate=rate).ratio("rate")


def _latency(rows: pl.DataFrame, seed: int) -> Latency:
    if rows.is_empty():
        return Latency()
    keys = rows.select("launch", "round").unique().sort("launch", "round").with_row_index("unit")
    requests = rows.join(keys, on=["launch", "round"])
    took = (requests["end_ns_step"] - requests["begin_ns_step"]).to_numpy() / 1e6
    weights = resampling_weights(keys["launch"].to_numpy(), seed)
    draw = drawn(keys["launch"].to_numpy())
    p50, p90, p99 = percentiles(took, requests["unit"].to_numpy(), weights, (0.5, 0.9, 0.99), draw)
    return Latency(p50=p50, p90=p90, p99=p99)


def _peak(rows: pl.DataFrame) -> int | None:
    """The largest rank's, over all rounds."""
    peak = rows["peak_bytes"].max()
    return int(peak) if isinstance(peak, int) and peak > 0 else None


def _with_efficiency(rows: list[Row]) -> list[Row]:
    """Each row against one rank with the same batch and setting, of the same launches."""
    alone = {_case_of(row): row.samples_per_s for row in rows if row.world_size == 1}
    return [dataclasses.replace(row, efficiency=_efficiency(row, alone.get(_case_of(row)))) for row in rows]


def _case_of(row: InferenceCase | TrainingCase) -> tuple[object, ...]:
    return (row.batch, *row.setting.values())


def _without_batch(row: InferenceCase | TrainingCase) -> tuple[object, ...]:
    return (row.world_size, *row.setting.values())


def _efficiency(row: InferenceCase | TrainingCase, alone: Measured | None) -> Measured | None:
    if row.samples_per_s is None or alone is None:
        return None
    return Measured(1.0) if row.world_size == 1 else row.samples_per_s / alone / row.world_size


def _kneed(rows: list[Row]) -> tuple[Row, ...]:
    """The rows with the knee of every setting marked, where several batches were measured."""
    settings: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        settings.setdefault(_without_batch(row), []).append(row)
    knees = {id(knee) for group in settings.values() if (knee := _knee(group)) is not None}
    return tuple(dataclasses.replace(row, knee=True) if id(row) in knees else row for row in rows)


def _knee(group: list[Row]) -> Row | None:
    measured = sorted((r for r in group if r.samples_per_s is not None), key=lambda r: r.batch)
    if len(measured) < 2:
        return None
    best = max(r.samples_per_s.value for r in measured if r.samples_per_s)
    knee = next(r for r in measured if r.samples_per_s and r.samples_per_s.value >= KNEE * best)
    return None if knee is measured[-1] else knee  # throughput still grows at the largest batch


def _largest(largest: Largest | None) -> tuple[LargestBatch, ...]:
    if largest is None:
        return ()
    return tuple(
        LargestBatch(
            **dataclasses.asdict(item.variant),
            limit_bytes=largest.limit_bytes,
            found=item.found,
            proved=item.proved,
            step=step(item.found, item.variant.accumulation_steps),
            tries=item.tries,
        )
        for item in largest.items
    )
