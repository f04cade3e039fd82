"""A typical step of a sharded module as spans: phases with the waits in them, and collectives by communicator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scaling.analysis.decompose.unit_stamps import UnitStamps, exposed
from scaling.analysis.results import Span


def typical_step(blocks: Sequence[UnitStamps], ranks: Sequence[int]) -> tuple[Span, ...]:
    """The step whose length is nearest to the mean of all; of some ranks."""
    lengths = [(b.steps["end_ns"] - b.steps["begin_ns"]).mean(axis=1) for b in blocks]
    mean = np.concatenate(lengths).mean()
    block = min(range(len(blocks)), key=lambda i: np.abs(lengths[i] - mean).min())
    step = int(np.abs(lengths[block] - mean).argmin())
    return tuple(s for rank in ranks for s in _of_rank(blocks[block], step, rank))


def _of_rank(stamps: UnitStamps, step: int, rank: int) -> list[Span]:
    origin = stamps.steps["begin_ns"][step].min()
    at = {name: values[step, rank] for name, values in stamps.steps.items()}
    forward, backward = at["begin_ns"] + at["input_ns"], at["sync_end_ns"] - at["backward_ns"]
    optimized = at["sync_end_ns"] + at["optimizer_ns"]
    found: list[Span] = []

    def add(lane: str, name: str, low: float, high: float, size: int | None = None) -> None:
        if high > low:
            begin, end = (round((value - origin) / 1e6, 4) for value in (low, high))
            found.append(Span(rank=rank, lane=lane, name=name, begin_ms=begin, end_ms=end, bytes=size))

    add("compute", "input", at["begin_ns"], forward)
    moved, skew = (values[step, rank] for values in exposed(stamps))
    waits = sorted(
        (stamps.wait[step, rank, k], k) for k in range(len(stamps.sent)) if stamps.wait[step, rank, k] > 0
    )
    for name, low, high in (("forward", forward, backward), ("backward", backward, at["sync_end_ns"])):
        going = low
        for begin, k in waits:
            if not low <= begin < high or moved[k] + skew[k] <= 0:
                continue
            add("compute", name, going, begin)
            add("compute", "exposed_skew", max(going, begin), begin + skew[k])
            add("compute", "exposed_transfer", begin + skew[k], begin + skew[k] + moved[k])
            going = max(going, begin + skew[k] + moved[k])
        add("compute", name, going, high)
    add("compute", "optimizer", at["sync_end_ns"], optimized)
    add("compute", "host", optimized, at["end_ns"])
    for k, one in enumerate(stamps.sent):
        begin, end = stamps.launch[step, rank, k], stamps.done[step, rank, k]
        add(one.axis, f"{one.kind} of unit {one.unit}, {one.phase}", begin, end, one.bytes)
    return found
