"""A short check beside every run: what differs between its ranks, and links and clocks that are not as promised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from scaling.analysis.clocks import DeviceSample
from scaling.doctor import devices, differences
from scaling.plan import Plan
from scaling.store import LaunchFolder, RunFolder
from scaling.telemetry import records as telemetry
from scaling.telemetry.records import HostRecord


def warnings(folder: RunFolder, plan: Plan) -> tuple[str, ...]:
    """One line each, for the report; each said once whatever the number of launches."""
    said: list[str] = []
    for launch in folder.launches():
        facts = environments(launch, plan)
        problems = list(differences.problems(differences.differences(facts)))
        for host in _hosts(launch, plan).values():
            ranks = {
                devices.index_of(host.gpus, f): r for r, f in facts.items() if f.get("host") == host.host
            }
            problems += devices.problems(host, {i: r for i, r in ranks.items() if i is not None})
        said += [
            f"{'' if p.rank is None or 'rank' in p.what else f'rank {p.rank}: '}{p.what}; {p.remedy}"
            for p in problems
        ]
    return tuple(dict.fromkeys(said))


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
            )
