"""A short check beside every run: what differs between its ranks, and links and clocks that are not as promised."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from scaling.analysis.clocks import DeviceSample
from scaling.analysis.contention import Stolen
from scaling.doctor import devices, differences, sharing
from scaling.plan import Plan
from scaling.store import LaunchFolder, RunFolder
from scaling.telemetry import records as telemetry
from scaling.telemetry.records import HostRecord, Sample

DEVICE = (
    "sm_mhz",
    "memory_mhz",
    "power_mw",
    "temperature_c",
    "utilisation_percent",
    "memory_used_bytes",
    "reasons",
)
"""What of a device is shown beside the steps."""


def warnings(folder: RunFolder, plan: Plan) -> tuple[str, ...]:
    """One line each, for the report; each said once whatever the number of launches."""
    said: list[str] = []
    for launch in folder.launches():
        said += [*problems(launch, plan), *sharing.labels(environments(launch, plan))]
    return tuple(dict.fromkeys(said))


def problems(launch: LaunchFolder, plan: Plan) -> tuple[str, ...]:
    """What differs between a launch's ranks, and what its devices' hosts say of them, a line each with its remedy."""
    facts = environments(launch, plan)
    found = list(differences.problems(differences.differences(facts)))
    for host in _hosts(launch, plan).values():
        ranks = {devices.index_of(host.gpus, f): r for r, f in facts.items() if f.get("host") == host.host}
        found += devices.problems(host, {i: r for i, r in ranks.items() if i is not None})
    return tuple(
        f"{'' if p.rank is None or 'rank' in p.what else f'rank {p.rank}: '}{p.what}; {p.remedy}"
        for p in found
    )


def samples(folder: RunFolder, plan: Plan) -> dict[tuple[int, int], tuple[DeviceSample, ...]]:
    """(launch, rank) -> the samples of its device; without GPUs there are none."""
    found = {}
    for launch in folder.launches():
        hosts = _hosts(launch, plan)
        for rank, facts in environments(launch, plan).items():
            host = hosts.get(int(facts.get("host", -1)))
            index = devices.index_of(host.gpus, facts) if host else None
            if host is not None and index is not None:
                found[launch.index, rank] = tuple(_samples(host, index))
    return found


def stolen(folder: RunFolder, plan: Plan) -> tuple[Stolen, ...]:
    """Of each machine, how often its hypervisor took its processors away; without telemetry there is none."""
    found: dict[str, list[float]] = {}
    for launch in folder.launches():
        hosts = _hosts(launch, plan).values()
        machines = {host.hostname: host for host in hosts}  # emulated hosts are one, and any of them tells
        for name, host in machines.items():
            shares = (_stolen(*pair) for pair in itertools.pairwise(host.samples))
            found.setdefault(name, []).extend(share for share in shares if share is not None)
    return tuple(Stolen(hostname=name, shares=tuple(shares)) for name, shares in found.items() if shares)


def _stolen(before: Sample, sample: Sample) -> float | None:
    """Of the processors' busy time, and at least of one processor's whole time, since the sample before."""
    span = sample.time_ns - before.time_ns
    busy, taken = (_rate(before.system, sample.system, f"cpu_{name}_ns", span) for name in ("busy", "stolen"))
    return None if busy is None or taken is None else taken / max(busy, 1.0)


def environments(launch: LaunchFolder, plan: Plan) -> dict[int, dict[str, Any]]:
    """env-<r>.json of every rank that left one, flat: `env.NAME` are its variables."""
    found = {}
    for rank in range(plan.ranks):
        try:
            record = json.loads(launch.env(rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        variables = record.pop("environment", {})
        skipped = ("rank", "schema")
        found[rank] = {k: v for k, v in record.items() if k not in skipped} | {
            f"env.{k}": v for k, v in variables.items()
        }
    return found


def _hosts(launch: LaunchFolder, plan: Plan) -> dict[int, HostRecord]:
    found = {host: telemetry.read(launch.telemetry(host)) for host in range(plan.hosts)}
    return {host: record for host, record in found.items() if record is not None}


def _samples(host: HostRecord, index: int) -> Iterator[DeviceSample]:
    for sample in host.samples:
        if index < len(sample.gpus):
            gpu = sample.gpus[index]
            milliwatts = gpu.get("power_mw")
            yield DeviceSample(
                time_ns=sample.time_ns,
                sm_mhz=gpu.get("sm_mhz"),
                reasons=gpu.get("reasons"),
                power_w=None if milliwatts is None else milliwatts / 1e3,
                device=f"{host.host}/{index}",
            )


def states(folder: RunFolder, plan: Plan) -> dict[int, list[dict[str, float]]]:
    """Launch -> what rank 0's host and device did while it ran, a row a sample; see `scaling.analysis.history`."""
    found = {}
    for launch in folder.launches():
        facts = environments(launch, plan).get(0, {})
        host = _hosts(launch, plan).get(int(facts.get("host", 0)))
        if host is not None:
            found[launch.index] = _states(host, devices.index_of(host.gpus, facts))
    return found


def _states(host: HostRecord, index: int | None) -> list[dict[str, float]]:
    """Counters as rates since the sample before, the rest as it is."""
    rows = []
    for before, sample in itertools.pairwise(host.samples):
        span = sample.time_ns - before.time_ns
        row: dict[str, float | None] = {"time_ns": sample.time_ns}
        row["host/cpu_busy_cores"] = _rate(before.system, sample.system, "cpu_busy_ns", span)
        waited, waits = (s.system.get("pressure_ns") or {} for s in (before, sample))
        row["host/cpu_pressure"] = _rate(waited, waits, "cpu", span)
        for name in ("cpu_mhz", "temperature_c", "memory_available_bytes"):
            row[f"host/{name}"] = sample.system.get(name)
        gpu = sample.gpus[index] if index is not None and index < len(sample.gpus) else {}
        row |= {f"gpu/{name}": gpu.get(name) for name in DEVICE}
        rows.append({name: float(value) for name, value in row.items() if value is not None})
    return rows


def _rate(before: dict[str, Any], after: dict[str, Any], name: str, span_ns: int) -> float | None:
    first, last = before.get(name), after.get(name)
    return None if first is None or last is None or span_ns <= 0 else (last - first) / span_ns
