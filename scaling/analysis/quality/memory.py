"""Memory that grows with the steps, and why stamps of a device may not time what they are taken to time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from scaling.analysis.results import Measured, MemoryGrowth, Point
from scaling.records.rank_file import Ints
from scaling.records.tables import Frame, in_memory
from scaling.settings.environment import VARIABLE
from scaling.settings.run import Spec
from scaling.settings.schedule import STEP_ARMS
from scaling.settings.topology import GPU
from scaling.units import format_bytes, ranks

BLOCKS_MIN = 12
"""With fewer blocks, no growth is computed."""
SETTLING = 1 / 3
"""This share of the blocks, at the start, is left out, because allocators and caches still fill up."""
LEAK_BYTES = 8 * 2**20
"""Less growth than this over the counted blocks is normal for an allocator."""


def growth(memory: Frame, blocks: Frame) -> tuple[MemoryGrowth, ...]:
    """One row for each launch, rank and kind of memory that has enough blocks.

    The growth is the Theil-Sen slope of what was held after each block over the steps until then,
    lead-in included: the median of the slopes between all pairs, with its 95 % interval.
    """
    keys = ["launch", "rank", "block"]
    facts = in_memory(blocks.select([*keys, "arm", "begin_ns", "lead_in", "steps"]))
    joined = in_memory(memory).join(facts, on=keys, how="inner")
    rows = joined.sort("launch", "rank", "begin_ns").with_columns(
        # blocks of bare exchanges have no training steps
        run=pl.when(pl.col("arm").is_in(STEP_ARMS)).then(pl.col("lead_in") + pl.col("steps")).otherwise(0)
    )
    places = rows.select("launch", "rank").to_numpy()
    begins = np.flatnonzero(np.diff(places, axis=0, prepend=-1).any(axis=1))
    run = np.split(rows["run"].to_numpy(), begins[1:])
    sizes = {kind: rows[f"{kind}_bytes"] for kind in ("host", "device")}
    present = {kind: np.split(column.is_not_null().to_numpy(), begins[1:]) for kind, column in sizes.items()}
    values = {kind: np.split(column.fill_null(0).to_numpy(), begins[1:]) for kind, column in sizes.items()}
    growths: list[MemoryGrowth] = []
    for at, (launch, rank) in enumerate(places[begins].tolist()):
        for kind in sizes:
            if present[kind][at].all() and values[kind][at].min():
                growths += _growth(launch, rank, kind, run[at].cumsum(), values[kind][at])
    return tuple(growths)


def _growth(launch: int, rank: int, kind: str, steps: Ints, sizes: Ints) -> Iterator[MemoryGrowth]:
    # Keep one row for each number of steps. Blocks without training steps are ties, and with ties in both steps and
    # bytes the interval's variance can come out below 0 (P. K. Sen, J. Am. Stat. Assoc. 63, 1968, equation 2.6).
    last = np.append(steps[1:], -1) != steps
    steps, sizes = steps[last], sizes[last]
    first = int(len(sizes) * SETTLING)
    steps, sizes = steps[first:], sizes[first:]
    if len(sizes) < BLOCKS_MIN:
        return
    slope = low = high = 0.0
    if (sizes != sizes[0]).any():  # most ranks hold the same all the time, so that every slope is 0
        from scipy.stats import theilslopes  # noqa: PLC0415  half a second to import, and rarely asked for

        slope, _, low, high = map(float, theilslopes(sizes, steps, 0.95))
    ran = int(steps[-1]) - int(steps[0])
    yield MemoryGrowth(
        launch=launch,
        rank=rank,
        kind=kind,
        begin_bytes=int(sizes[0]),
        end_bytes=int(sizes[-1]),
        steps=ran,
        growth_bytes_per_step=Measured(slope, low, high, len(sizes)),
        leak=low * ran > LEAK_BYTES,
    )


def warnings(growths: tuple[MemoryGrowth, ...]) -> tuple[str, ...]:
    """One line for each leak."""
    return tuple(
        f"leak: rank {g.rank}'s {g.kind} memory grows by {format_bytes(g.growth_bytes_per_step.value)} a step "
        f"({format_bytes(g.begin_bytes)} to {format_bytes(g.end_bytes)} over {g.steps} steps): something keeps "
        "tensors alive, such as a list of losses that were not detached"
        for g in growths
        if g.leak
    )


_SERIAL = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "all streams share one hardware queue, where an event or a collective can wait "
    "behind kernels of another stream; waits and transfers may be partly such waits, and overlap less than without it",
    "CUDA_LAUNCH_BLOCKING": "the host waits for each kernel, so nothing overlaps; unset it to measure",
}
"""Variables that have the value 1, and what that does (CUDA programming guide, environment variables)."""


def variable_warnings(facts: Mapping[int, Mapping[str, Any]]) -> tuple[str, ...]:
    """A warning for each such variable that is set on ranks with a CUDA device; `facts` by rank."""
    lines = []
    for name, effect in _SERIAL.items():
        fact = f"{VARIABLE}{name}"
        ranks = [rank for rank, flat in facts.items() if flat.get(fact) == "1" and flat.get("device") == GPU]
        if ranks:
            where = "" if len(ranks) == len(facts) else f" on rank {', '.join(map(str, sorted(ranks)))}"
            lines.append(f"{name}=1{where}: {effect}")
    return tuple(lines)


APART = 0.8
"""Share of the merged duration. In a ring, ranks see the end up to one of 2(n-1) chunks apart: 1/6 at four ranks."""


def clock_warnings(points: Iterable[Point], spec: Spec) -> tuple[str, ...]:
    """A warning for each world size at which the two clearly differ, where stamps are device events."""
    if not spec.topology.accelerated:
        return ()
    lines = []
    for point in points:
        share = point.comm.least_share if point.comm else None
        if share is not None and share.most < APART:
            lines.append(
                f"at {ranks(point.world_size)} the collectives' shortest duration on any one rank's clock is "
                f"{share.value:.0%} of their duration by all clocks together: the devices' clocks disagree, or the "
                "ranks saw the collectives end at different times, so transfer is overestimated"
            )
    return tuple(lines)
