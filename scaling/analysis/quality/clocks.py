"""Join telemetry to blocks by time: throttled blocks, the cost of lower clocks, the power of the devices.

Samples carry their host's clock, so they join with blocks by the times on it (scaling.records.rank).
"""

from __future__ import annotations

import functools
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import SHOWN, TrialRecords
from scaling.analysis.results import DeviceClocks, Throttled
from scaling.analysis.statistics.rounds import Floats, Means, Rounds
from scaling.hardware.nvml import reasons_of
from scaling.spec.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE

SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h: hardware slowdown, software and hardware thermal slowdown, power brake. A power cap is no fault."""
POWER_WINDOW_NS = 10**9
"""NVML's power is a mean over the last second (nvml.h, nvmlDeviceGetPowerUsage, Ampere and later)."""
TOGETHER = (PLAIN, PROBE)
"""Arms of DDP over the group."""

Term = Callable[[Means], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One device at one time, on its host's clock; None: not reported."""

    time_ns: int
    sm_mhz: int | None
    reasons: int | None
    power_w: float | None = None
    device: str = ""
    """Identifies the device across hosts, equal for ranks that share one. Empty: not known."""


def with_telemetry(
    blocks: pl.DataFrame, samples: Mapping[tuple[int, int], Sequence[DeviceSample]]
) -> pl.DataFrame:
    """Each block and rank with the telemetry of its device; null where nothing was sampled.

    `samples` by (launch, rank): those of the device that the rank ran on, in order of time. `sm_mhz`
    and `power_w` are means over the samples inside the block; power is used from one second after its begin, since
    NVML reports a mean over the last second. `reasons` (all bits that were seen) and `throttled` of a block without a
    sample are those of the sample closest to its middle. `device`: which one it was.
    """
    times = {key: [s.time_ns for s in known] for key, known in samples.items()}
    rows = []
    place = ("launch", "rank", "host_begin_ns", "host_end_ns")
    for launch, rank, begin, end in blocks.select(place).iter_rows():
        known, at = samples.get((launch, rank), ()), times.get((launch, rank), [])
        inside = known[bisect_left(at, begin) : bisect_right(at, end)]
        near = inside or _nearest(known, at, (begin + end) // 2)
        reasons = [s.reasons for s in near if s.reasons is not None]
        bits = functools.reduce(operator.or_, reasons) if reasons else None
        rows.append(
            (
                _mean([s.sm_mhz for s in inside]),
                _mean([s.power_w for s in inside if s.time_ns >= begin + POWER_WINDOW_NS]),
                bits,
                None if bits is None else bool(bits & SLOWDOWNS),
                (known[0].device or None) if known else None,
            )
        )
    return blocks.hstack(pl.DataFrame(rows, schema=SHOWN, orient="row"))


def quantities(records: TrialRecords, typical: set[int]) -> dict[str, Floats]:
    """Telemetry quantities of a point, one value a round; all NaN without telemetry.

    `clocks.neighbours`: fraction by which a rank's clock is lower while the others run. `clocks.overlap`: the same with
    communication. `mhz.*`: the clocks. `watts`: power of all ranks' boards.
    """
    everybody = set(range(records.trial.world_size))
    return {
        "clocks.neighbours": records.clock_drop((BARE_ONE,), (BARE_ALL,), typical),
        "clocks.overlap": records.clock_drop((DDP_SOLO,), TOGETHER, typical),
        "mhz.alone": records.device("sm_mhz", (BARE_ONE,), typical),
        "mhz.beside": records.device("sm_mhz", (BARE_ALL,), typical),
        "mhz.together": records.device("sm_mhz", TOGETHER, typical),
        "watts": records.boards("power_w", (PLAIN,), everybody),
    }


def taken_out(rounds: Rounds, terms: Mapping[str, Term]) -> dict[str, Term]:
    """The `clocks` loss over the plain step, and the terms that contain it, without it; empty without telemetry.

    Compute that follows the clock takes T (1 - f / f_before) longer. Work that waits for memory does not follow it, so
    the explained part is limited to between 0 and the term itself. A term is left unchanged if its clocks were sampled
    in too few rounds for an interval.
    """
    compute: dict[str, Term] = {
        "neighbours": lambda m: (m[BARE_ALL] - m[f"{BARE_ALL}.input"] - m[f"{BARE_ALL}.host"]) / m[PLAIN],
        "overlap": lambda m: (m["typical.probe.forward"] + m["typical.probe.compute"]) / m[PROBE],
    }

    def explained(name: str) -> Term:
        def of(m: Means) -> Floats:
            most = np.maximum(terms[name](m), 0.0)
            found: Floats = np.clip(compute[name](m) * m[f"clocks.{name}"], 0.0, most)
            return found

        return of

    def rest(name: str, part: Term) -> Term:
        return lambda m: terms[name](m) - part(m)

    parts = {name: explained(name) for name in compute if name in terms}
    measured = {name: rounds.measure(part) for name, part in parts.items()}
    known = {name: parts[name] for name, number in measured.items() if number and number.interval}
    if not known:
        return {}

    def whole(m: Means) -> Floats:
        return sum((part(m) for part in known.values()), np.zeros(1))

    return {"clocks": whole, **{name: rest(name, part) for name, part in known.items()}}


def clocks(records: TrialRecords, rounds: Rounds) -> DeviceClocks | None:
    """The devices' clocks at one world size; None without telemetry."""
    ran = records.devices.filter(pl.col("arm") != BARE_ONE)
    known = ran.filter(pl.col("throttled").is_not_null())
    if known.is_empty() and "mhz.together" not in rounds:
        return None
    found = []
    for (rank,), part in known.sort("rank").partition_by("rank", as_dict=True, maintain_order=True).items():
        slowed = part.filter(pl.col("throttled"))
        if slowed.height:
            bits = int(np.bitwise_or.reduce(slowed["reasons"].to_numpy()))
            names = reasons_of(bits & SLOWDOWNS)
            found.append(Throttled(rank=int(rank), blocks=slowed.height, of=part.height, reasons=names))
    return DeviceClocks(
        alone_mhz=rounds.ratio("mhz.alone"),
        beside_mhz=rounds.ratio("mhz.beside"),
        together_mhz=rounds.ratio("mhz.together"),
        throttled=tuple(found),
    )


def warnings(blocks: pl.DataFrame) -> tuple[str, ...]:
    """A warning with the number of throttled blocks and their ranks."""
    throttled = blocks.filter(pl.col("throttled"))
    if throttled.is_empty():
        return ()
    known = blocks.filter(pl.col("throttled").is_not_null()).height
    ranks = ", ".join(str(r) for r in sorted(set(throttled["rank"])))
    return (
        f"throttled: {throttled.height} of {known} blocks ran while their device slowed itself down (rank {ranks})",
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _nearest(samples: Sequence[DeviceSample], times_ns: Sequence[int], time_ns: int) -> list[DeviceSample]:
    """The sample closest to a time; `times_ns`: those of the samples, in order."""
    after = bisect_left(times_ns, time_ns)
    around = [k for k in (after - 1, after) if 0 <= k < len(samples)]
    return [samples[min(around, key=lambda k: abs(times_ns[k] - time_ns))]] if around else []
