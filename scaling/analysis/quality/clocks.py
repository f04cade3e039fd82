"""Join telemetry to blocks by time: throttled blocks, the cost of lower clocks, the power of the devices.

Samples carry their host's clock, so they join with blocks by the times on it (scaling.records.rank_file). Also what one
host's telemetry tells beside the steps: states, stolen time. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.analysis.decompose.quantities import SHOWN, TrialRecords
from scaling.analysis.results import DeviceClocks, Throttled
from scaling.analysis.statistics.rounds import Floats, Means, Rounds
from scaling.hardware.nvml import reasons_of
from scaling.hardware.telemetry import HostRecord
from scaling.records.tables import Frame, in_memory
from scaling.settings.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE

SLOWDOWNS = 0x8 | 0x20 | 0x40 | 0x80
"""nvml.h: hardware slowdown, software and hardware thermal slowdown, power brake. A power cap is no fault."""
POWER_WINDOW_NS = 10**9
"""NVML's power is a mean over the last second (nvml.h, nvmlDeviceGetPowerUsage, Ampere and later)."""
TOGETHER = (PLAIN, PROBE)
"""Arms of DDP over the group."""

Term = Callable[[Means], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSamples:
    """What one device reported, in order of time; a large run has many, so they are arrays."""

    time_ns: NDArray[np.int64]
    """On its host's clock."""
    sm_mhz: Floats
    power_w: Floats
    """NaN: not reported."""
    reasons: NDArray[np.int64]
    """Bits; below 0: not reported."""
    device: str = ""
    """Identifies the device across hosts, equal for ranks that share one. Empty: not known."""

    @classmethod
    def of(
        cls,
        time_ns: Sequence[int],
        *,
        sm_mhz: Sequence[int | None],
        reasons: Sequence[int | None],
        power_w: Sequence[float | None],
        device: str = "",
    ) -> DeviceSamples:
        """From a value for each time; None: not reported."""
        return cls(
            time_ns=np.array(time_ns, dtype=np.int64),
            sm_mhz=np.array(sm_mhz, dtype=np.float64),
            power_w=np.array(power_w, dtype=np.float64),
            reasons=np.array([_NO_REASONS if bits is None else bits for bits in reasons], dtype=np.int64),
            device=device,
        )


def with_telemetry(blocks: pl.DataFrame, samples: Mapping[tuple[int, int], DeviceSamples]) -> pl.DataFrame:
    """Each block and rank with the telemetry of its device; null where nothing was sampled.

    `samples` by (launch, rank): those of the device that the rank ran on. `sm_mhz`
    and `power_w` are means over the samples inside the block; power is used from one second after its begin, since
    NVML reports a mean over the last second. `reasons` (all bits that were seen) and `throttled` of a block without a
    sample are those of the sample closest to its middle. `device`: which one it was.
    """
    keys = blocks.select("launch", "rank").with_row_index("at")
    begin, end = (blocks[name].to_numpy() for name in ("host_begin_ns", "host_end_ns"))
    shown: dict[str, NDArray[Any]] = {
        "sm_mhz": np.full(blocks.height, np.nan),
        "power_w": np.full(blocks.height, np.nan),
        "reasons": np.full(blocks.height, _NO_REASONS),
        "device": np.full(blocks.height, None, dtype=object),
    }
    for (launch, rank), rows in keys.partition_by("launch", "rank", as_dict=True).items():
        sampled = samples.get((launch, rank))
        if sampled is not None and len(sampled.time_ns):
            at = rows["at"].to_numpy()
            for name, values in _beside(sampled, begin[at], end[at]).items():
                shown[name][at] = values
            shown["device"][at] = sampled.device or None
    reasons = pl.Series(shown["reasons"])
    reasons = reasons.set(reasons == _NO_REASONS, None)
    columns = {
        "sm_mhz": pl.Series(shown["sm_mhz"]).fill_nan(None),
        "power_w": pl.Series(shown["power_w"]).fill_nan(None),
        "reasons": reasons,
        "throttled": (reasons & SLOWDOWNS) != 0,
        "device": pl.Series(shown["device"].tolist(), dtype=pl.String),
    }
    return blocks.hstack(pl.DataFrame(columns, schema=SHOWN))


_NO_REASONS = -1
"""Stands for a block whose samples report no reasons; reported ones are bits."""


def _beside(
    samples: DeviceSamples, begin_ns: NDArray[np.int64], end_ns: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """The telemetry of one rank's blocks from all samples of its device."""
    at = samples.time_ns
    first, last = np.searchsorted(at, begin_ns, "left"), np.searchsorted(at, end_ns, "right")
    settled = np.minimum(np.searchsorted(at, begin_ns + POWER_WINDOW_NS, "left"), last)
    nearest = _nearest(at, (begin_ns + end_ns) // 2)
    inside = last > first
    low, high = np.where(inside, first, nearest), np.where(inside, last, nearest + 1)
    reported = samples.reasons >= 0
    bits = np.append(np.where(reported, samples.reasons, 0), 0)
    told = np.concatenate([[0], np.cumsum(reported)])
    # Every other of reduceat's stretches is one from a block's end to the next block's begin.
    joined = np.bitwise_or.reduceat(bits, np.column_stack([low, high]).ravel())[::2]
    return {
        "sm_mhz": _means(samples.sm_mhz, first, last),
        "power_w": _means(samples.power_w, settled, last),
        "reasons": np.where(told[high] > told[low], joined, _NO_REASONS),
    }


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

    def explained(name: str, m: Means) -> Floats:
        most = np.maximum(terms[name](m), 0.0)
        share: Floats = np.clip(compute[name](m) * m[f"clocks.{name}"], 0.0, most)
        return share

    def rest(name: str, m: Means) -> Floats:
        return terms[name](m) - explained(name, m)

    measured = {name: rounds.measure(partial(explained, name)) for name in compute if name in terms}
    sure = [name for name, number in measured.items() if number and number.interval]
    if not sure:
        return {}

    def together(m: Means) -> Floats:
        return sum((explained(name, m) for name in sure), np.zeros(1))

    return {"clocks": together, **{name: partial(rest, name) for name in sure}}


def clocks(records: TrialRecords, rounds: Rounds) -> DeviceClocks | None:
    """The devices' clocks at one world size; None without telemetry."""
    ran = records.devices.filter((pl.col("arm") != BARE_ONE) & pl.col("throttled").is_not_null())
    many = dict(in_memory(ran.group_by("rank").agg(blocks=pl.len())).iter_rows())
    if not many and "mhz.together" not in rounds:
        return None
    throttled = []
    slowed = in_memory(ran.filter(pl.col("throttled")).select("rank", "reasons")).sort("rank")
    for (rank,), part in slowed.partition_by("rank", as_dict=True, maintain_order=True).items():
        bits = int(np.bitwise_or.reduce(part["reasons"].to_numpy()))
        names = reasons_of(bits & SLOWDOWNS)
        throttled.append(Throttled(rank=int(rank), blocks=part.height, of=many[rank], reasons=names))
    return DeviceClocks(
        alone_mhz=rounds.ratio("mhz.alone"),
        beside_mhz=rounds.ratio("mhz.beside"),
        together_mhz=rounds.ratio("mhz.together"),
        throttled=tuple(throttled),
    )


def warnings(blocks: Frame) -> tuple[str, ...]:
    """A warning with the number of throttled blocks and their ranks."""
    throttled = in_memory(blocks.filter(pl.col("throttled")).select("rank"))
    if throttled.is_empty():
        return ()
    sampled = in_memory(blocks.select(pl.col("throttled").is_not_null().sum())).item()
    ranks = ", ".join(str(r) for r in sorted(set(throttled["rank"])))
    return (
        f"throttled: {throttled.height} of {sampled} blocks ran while their device slowed itself down (rank {ranks})",
    )


def _means(numbers: Floats, first: NDArray[np.int64], last: NDArray[np.int64]) -> Floats:
    """Means of stretches of some values, without those that are NaN; NaN for a stretch without any."""
    finite = np.isfinite(numbers)
    totals = np.concatenate([[0.0], np.cumsum(np.where(finite, numbers, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    many = counts[last] - counts[first]
    return np.where(many > 0, (totals[last] - totals[first]) / np.maximum(many, 1), np.nan)


def _nearest(times_ns: NDArray[np.int64], of_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of the closest of some sorted times, the earlier of two."""
    after = np.minimum(np.searchsorted(times_ns, of_ns, "left"), len(times_ns) - 1)
    before = np.maximum(after - 1, 0)
    nearest: NDArray[np.int64] = np.where(
        np.abs(times_ns[before] - of_ns) <= np.abs(times_ns[after] - of_ns), before, after
    )
    return nearest


DEVICE_FIELDS = (
    "sm_mhz",
    "memory_mhz",
    "power_mw",
    "temperature_c",
    "utilisation_percent",
    "memory_used_bytes",
    "reasons",
)
"""Figures of a device that are shown beside the steps."""


def device_samples(host: HostRecord, index: int) -> DeviceSamples:
    """The samples of the host's device with this NVML index, in order of time."""
    samples = [sample for sample in host.samples if index < len(sample.gpus)]
    gpus = [sample.gpus[index] for sample in samples]
    return DeviceSamples.of(
        [sample.time_ns for sample in samples],
        sm_mhz=[gpu.get("sm_mhz") for gpu in gpus],
        reasons=[gpu.get("reasons") for gpu in gpus],
        power_w=[None if (mw := gpu.get("power_mw")) is None else mw / 1e3 for gpu in gpus],
        device=f"{host.host}/{index}",
    )


def states(host: HostRecord, index: int | None) -> Iterator[dict[str, float]]:
    """What the host, and its device `index`, did between each two samples: counters as rates, the rest as it was."""
    for before, sample in itertools.pairwise(host.samples):
        span = sample.time_ns - before.time_ns
        row: dict[str, float | None] = {"time_ns": sample.time_ns}
        row["host/cpu_busy_cores"] = _rate(before.system, sample.system, "cpu_busy_ns", span)
        waited, waits = (s.system.get("pressure_ns") or {} for s in (before, sample))
        row["host/cpu_pressure"] = _rate(waited, waits, "cpu", span)
        for name in ("cpu_mhz", "temperature_c", "memory_available_bytes"):
            row[f"host/{name}"] = sample.system.get(name)
        gpu = sample.gpus[index] if index is not None and index < len(sample.gpus) else {}
        row |= {f"gpu/{name}": gpu.get(name) for name in DEVICE_FIELDS}
        yield {name: float(value) for name, value in row.items() if value is not None}


def stolen_shares(host: HostRecord) -> list[float]:
    """Share of the busy time between each two samples that the hypervisor gave to others; empty where it is unknown."""
    shares = []
    for before, sample in itertools.pairwise(host.samples):
        span, counters = sample.time_ns - before.time_ns, (before.system, sample.system)
        busy, lost = (_rate(*counters, f"cpu_{name}_ns", span) for name in ("busy", "stolen"))
        if busy is not None and lost is not None:
            # At least one processor's whole time counts as busy, so that an idle machine shows no large share.
            shares.append(lost / max(busy, 1.0))
    return shares


def pressed(host: HostRecord) -> dict[str, float]:
    """Share of a launch's time in which some process waited for a core, for memory, or for a disk, by resource."""
    if len(host.samples) < 2:
        return {}
    first, last = host.samples[0], host.samples[-1]
    before, after = (sample.system.get("pressure_ns") or {} for sample in (first, last))
    span = last.time_ns - first.time_ns
    rates = {name: _rate(before, after, name, span) for name in ("cpu", "memory", "io")}
    return {name: rate for name, rate in rates.items() if rate is not None}


def _rate(before: dict[str, Any], after: dict[str, Any], name: str, span_ns: int) -> float | None:
    first, last = before.get(name), after.get(name)
    return None if first is None or last is None or span_ns <= 0 else (last - first) / span_ns
