"""Efficiency, and the world size that it is relative to. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.statistics.rounds import Floats, Means
from scaling.spec.plan import Plan
from scaling.spec.schedule import BARE_ONE, nobody_alone

BASE = "base"
"""Time that all devices of the base take for a step together, ns: of a rank and its own batch in weak scaling."""


def efficiency(n: int, *, strong: bool, tensor: int = 1, base: int = 1) -> Callable[[Means], Floats]:
    """Ideal step over measured step.

    The ideal is one rank alone with its own batch (weak scaling), or with the whole batch, divided by n (strong).
    Where `tensor` ranks divide the layers for the same samples, they would take the tensor-th part of its time. Where
    no rank ran alone, the ideal is the throughput a rank at the `base` world size.
    """
    if strong:
        return lambda m: m[BASE] / (n * m["plain"])
    if base > 1:
        return lambda m: m[BASE] / (tensor * m["plain"])
    return lambda m: m[BARE_ONE] / (tensor * m["plain"])


def base_world_size(plan: Plan, records: Mapping[int, TrialRecords]) -> int:
    """1, one rank alone; the smallest measured world size where no rank ran alone what is divided.

    In strong scaling that is the whole batch, in weak scaling the whole model. The rank may not have been asked to, or
    it ran out of memory. `records`: by world size.
    """
    with_alone = (
        records.values() if plan.spec.mode != "strong" else [one for n, one in records.items() if n == 1]
    )
    alone = any(BARE_ONE in found.arms for found in with_alone)
    if alone or plan.own_loop or plan.variant is not None:
        return 1
    return min((n for n, found in records.items() if not found.index.is_empty()), default=1)


def no_single_rank(size: int, mode: str) -> tuple[str, ...]:
    """The warning for a base world size above 1, with what that hides."""
    if size == 1:
        return ()
    return (
        f"{nobody_alone(mode)}, so efficiency and speedup are relative to {size} ranks, the smallest world size that "
        f"was measured: what {size} ranks lose against one is hidden, and the loss is not split by cause",
    )
