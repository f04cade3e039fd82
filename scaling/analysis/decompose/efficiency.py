"""Efficiency, and the world size that it is relative to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.statistics.rounds import Floats, Means
from scaling.spec.plan import Plan
from scaling.spec.schedule import BARE_ONE


def efficiency(n: int, *, strong: bool, tensor: int = 1) -> Callable[[Means], Floats]:
    """Ideal step over measured step.

    The ideal is one rank alone with its own batch (weak scaling), or with the whole batch, divided by n (strong).
    Where `tensor` ranks divide the layers for the same samples, they would take the tensor-th part of its time.
    """
    if strong:
        return lambda m: m["whole_batch"] / (n * m["plain"])
    return lambda m: m[BARE_ONE] / (tensor * m["plain"])


def base_world_size(plan: Plan, records: Mapping[int, TrialRecords]) -> int:
    """1, one rank alone; in strong scaling the smallest measured world size where no rank ran the whole batch alone.

    It may not have been asked to, or it ran out of memory. `records`: by world size.
    """
    alone = 1 in records and bool((records[1].ranks["arm"] == BARE_ONE).any())
    if plan.spec.mode != "strong" or alone:
        return 1
    return min((n for n, found in records.items() if not found.index.is_empty()), default=1)


def no_single_rank(size: int) -> tuple[str, ...]:
    """The warning for a base world size above 1."""
    if size == 1:
        return ()
    return (
        f"no rank ran the whole batch alone, so efficiency and speedup are relative to {size} ranks, the smallest "
        "world size that was measured, and the loss is not split by cause",
    )
