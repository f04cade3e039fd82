"""What samples cost: money from a price a GPU-hour, energy from what the devices drew. Pure."""

from __future__ import annotations

from scaling.analysis.results import Measured, SampleCost
from scaling.analysis.statistics.rounds import Rounds

MILLION = 1e6


def cost(
    rounds: Rounds,
    *,
    samples: int,
    ranks: int,
    samples_per_s: Measured | None,
    usd_per_gpu_hour: float | None,
) -> SampleCost:
    """Cost at one world size. `samples`: of all ranks in a step (0: unknown). `rounds` has `plain` (ns) and `watts`.

    Energy is that of the GPU boards, as NVML reports it; the host's is not included.
    """
    return SampleCost(
        usd_per_million_samples=usd_per_million(samples_per_s, ranks, usd_per_gpu_hour),
        power_w=rounds.ratio("watts"),
        samples_per_joule=rounds.ratio(lambda m: samples * 1e9 / m["plain"] / m["watts"])
        if samples
        else None,
    )


def usd_per_million(
    samples_per_s: Measured | None, ranks: int, usd_per_gpu_hour: float | None
) -> Measured | None:
    """Price of a million samples with one GPU for each rank; None where the price or the throughput is missing."""
    if samples_per_s is None or usd_per_gpu_hour is None:
        return None
    usd = MILLION * usd_per_gpu_hour * ranks / 3600
    return usd / samples_per_s
