"""Find memory that grows with the steps: a leak that would end a long run."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from scipy.stats import theilslopes

from scaling.analysis.results import Measured, MemoryGrowth
from scaling.spec.schedule import STEP_ARMS
from scaling.units import format_bytes

BLOCKS_MIN = 12
"""With fewer blocks, no growth is computed."""
SETTLING = 1 / 3
"""This share of the blocks, at the start, is left out, because allocators and caches still fill up."""
LEAK_BYTES = 8 * 2**20
"""Less growth than this over the counted blocks is normal for an allocator."""


def growth(memory: pl.DataFrame, blocks: pl.DataFrame) -> tuple[MemoryGrowth, ...]:
    """One row for each launch, rank and kind of memory that has enough blocks.

    The growth is the Theil-Sen slope of what was held after each block over the steps until then,
    lead-in included: the median of the slopes between all pairs, with its 95 % interval.
    """
    keys = ["launch", "rank", "block"]
    joined = memory.join(blocks.select([*keys, "arm", "begin_ns", "lead_in", "steps"]), on=keys, how="inner")
    found: list[MemoryGrowth] = []
    for (launch, rank), rows in joined.sort("launch", "rank", "begin_ns").group_by(
        ["launch", "rank"], maintain_order=True
    ):
        trained = (
            rows["arm"].is_in(STEP_ARMS).cast(pl.Int64)
        )  # blocks of bare exchanges have no training steps
        steps = (trained * (rows["lead_in"] + rows["steps"])).cum_sum()
        for kind in ("host", "device"):
            held = rows[f"{kind}_bytes"]
            if held.null_count() == 0 and held.min():
                found.extend(_growth(int(str(launch)), int(str(rank)), kind, steps, held))
    return tuple(found)


def _growth(launch: int, rank: int, kind: str, steps: pl.Series, held: pl.Series) -> Iterator[MemoryGrowth]:
    # Keep one row for each number of steps. Blocks without training steps are ties, and with ties in both steps and
    # bytes the interval's variance can come out below 0 (P. K. Sen, J. Am. Stat. Assoc. 63, 1968, equation 2.6).
    last = steps.shift(-1, fill_value=-1) != steps
    steps, held = steps.filter(last), held.filter(last)
    first = int(len(held) * SETTLING)
    steps, held = steps[first:], held[first:]
    if len(held) < BLOCKS_MIN:
        return
    slope, _, low, high = theilslopes(held.to_numpy(), steps.to_numpy(), 0.95)
    grown = float(low) * (int(steps[-1]) - int(steps[0]))
    yield MemoryGrowth(
        launch=launch,
        rank=rank,
        kind=kind,
        begin_bytes=int(held[0]),
        end_bytes=int(held[-1]),
        steps=int(steps[-1]) - int(steps[0]),
        growth_bytes_per_step=Measured(float(slope), float(low), float(high), len(held)),
        leak=grown > LEAK_BYTES,
    )


def warnings(found: tuple[MemoryGrowth, ...]) -> tuple[str, ...]:
    """One line for each leak."""
    return tuple(
        f"leak: rank {g.rank}'s {g.kind} memory grows by {format_bytes(g.growth_bytes_per_step.value)} a step "
        f"({format_bytes(g.begin_bytes)} to {format_bytes(g.end_bytes)} over {g.steps} steps): something keeps "
        "tensors alive, such as a list of losses that were not detached"
        for g in found
        if g.leak
    )
