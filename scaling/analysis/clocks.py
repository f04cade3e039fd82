"""Telemetry joined to blocks by time: which were throttled, and what lower clocks cost.

Samples and blocks of a host carry the same clock, so they join as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.results import Measured
from scaling.analysis.stats import student

SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h: hardware slowdown, software and hardware thermal slowdown, power brake. A power cap is no fault."""
ROUNDS_MIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSample:
    """One device at one time, on its host's clock."""

    time_ns: int
    sm_mhz: int | None
    reasons: int | None


def block_clocks(
    blocks: pl.DataFrame, samples: Mapping[tuple[int, int], Sequence[ClockSample]]
) -> pl.DataFrame:
    """Each block and rank with its mean SM clock (`sm_mhz`) and whether it was `throttled`; null without samples.

    `samples` by (launch, rank): those of the device that the rank ran on, in order of time. A block
    that is shorter than the sampling period takes the sample next to its middle.
    """
    rows = []
    for launch, rank, begin, end in blocks.select("launch", "rank", "begin_ns", "end_ns").iter_rows():
        known = samples.get((launch, rank), ())
        inside = [s for s in known if begin <= s.time_ns <= end] or _nearest(known, (begin + end) // 2)
        clocks = [s.sm_mhz for s in inside if s.sm_mhz is not None]
        reasons = [s.reasons for s in inside if s.reasons is not None]
        rows.append(
            (
                sum(clocks) / len(clocks) if clocks else None,
                any(r & SLOWDOWNS for r in reasons) if reasons else None,
            )
        )
    columns = {"sm_mhz": pl.Float64, "throttled": pl.Boolean}
    return blocks.hstack(pl.DataFrame(rows, schema=columns, orient="row"))


def share(
    clocked: pl.DataFrame, world_size: int, *, compute_ms: Measured | None, step_ms: Measured | None
) -> Measured | None:
    """The `clocks` loss: what lower clocks beside other ranks cost, over the plain step; None without telemetry.

    Compute goes with the clock, so compute_ms (1 - f_together / f_alone) is lost, f being the mean
    SM clock in plain and in bare_one blocks of the same round.
    """
    if compute_ms is None or step_ms is None or clocked["sm_mhz"].null_count() == clocked.height:
        return None
    its = clocked.filter((pl.col("world_size") == world_size) & pl.col("sm_mhz").is_not_null())
    means = {
        arm: dict(
            its.filter(pl.col("arm") == arm)
            .group_by(pl.struct("launch", "round").alias("key"))
            .agg(pl.col("sm_mhz").mean())
            .select(
                pl.col("key").struct.field("launch") * 10**6 + pl.col("key").struct.field("round"), "sm_mhz"
            )
            .iter_rows()
        )
        for arm in ("bare_one", "plain")
    }
    both = sorted(means["bare_one"].keys() & means["plain"].keys())
    if not both:
        return None
    part = compute_ms.value / step_ms.value
    lost = np.array([part * max(0.0, 1 - means["plain"][k] / means["bare_one"][k]) for k in both])
    if len(lost) < ROUNDS_MIN:
        return Measured(float(lost.mean()), n=len(lost))
    half = student(len(lost) - 1) * float(lost.std(ddof=1)) / len(lost) ** 0.5
    mean = float(lost.mean())
    return Measured(mean, max(0.0, mean - half), mean + half, len(lost))


def warnings(clocked: pl.DataFrame) -> tuple[str, ...]:
    """How many blocks were throttled, and on which ranks."""
    throttled = clocked.filter(pl.col("throttled"))
    if throttled.is_empty():
        return ()
    known = clocked.filter(pl.col("throttled").is_not_null()).height
    ranks = ", ".join(str(r) for r in sorted(set(throttled["rank"])))
    return (
        f"throttled: {throttled.height} of {known} blocks ran while their device slowed itself down (rank {ranks})",
    )


def _nearest(samples: Sequence[ClockSample], time_ns: int) -> list[ClockSample]:
    if not samples:
        return []
    return [min(samples, key=lambda s: abs(s.time_ns - time_ns))]
