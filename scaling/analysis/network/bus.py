"""What a collective moves over each link, as nccl-tests counts it."""

from __future__ import annotations


def bus_factor(world_size: int, collective: str = "all_reduce") -> float:
    """busbw / algbw of a collective (nccl-tests, doc/PERFORMANCE.md)."""
    n = world_size
    return {
        "all_reduce": 2 * (n - 1) / n,
        "all_gather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "broadcast": 1.0,
        "send": 1.0,
        "recv": 1.0,
    }[collective]
