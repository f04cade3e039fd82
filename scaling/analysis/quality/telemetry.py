"""What the analysis joins with the steps from one host's telemetry: device samples, states, stolen time. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from scaling.analysis.quality.clocks import DeviceSamples
from scaling.hardware.telemetry import HostRecord, Sample

SHOWN = (
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
    known = [sample for sample in host.samples if index < len(sample.gpus)]
    gpus = [sample.gpus[index] for sample in known]
    milliwatts = [gpu.get("power_mw") for gpu in gpus]
    return DeviceSamples.of(
        [sample.time_ns for sample in known],
        sm_mhz=[gpu.get("sm_mhz") for gpu in gpus],
        reasons=[gpu.get("reasons") for gpu in gpus],
        power_w=[None if value is None else value / 1e3 for value in milliwatts],
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
        row |= {f"gpu/{name}": gpu.get(name) for name in SHOWN}
        yield {name: float(value) for name, value in row.items() if value is not None}


def stolen_shares(host: HostRecord) -> list[float]:
    """Share of the busy time between each two samples that the hypervisor gave to others; empty where it is unknown."""
    shares = (_stolen_share(before, sample) for before, sample in itertools.pairwise(host.samples))
    return [share for share in shares if share is not None]


def _stolen_share(before: Sample, sample: Sample) -> float | None:
    """The busy time counts as one processor's whole time at least, so that an idle machine shows no large share."""
    span = sample.time_ns - before.time_ns
    busy, taken = (_rate(before.system, sample.system, f"cpu_{name}_ns", span) for name in ("busy", "stolen"))
    return None if busy is None or taken is None else taken / max(busy, 1.0)


def _rate(before: dict[str, Any], after: dict[str, Any], name: str, span_ns: int) -> float | None:
    first, last = before.get(name), after.get(name)
    return None if first is None or last is None or span_ns <= 0 else (last - first) / span_ns
