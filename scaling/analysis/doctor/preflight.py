"""A short check beside every run: ranks that differ, devices that are not as promised or that ranks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.analysis.doctor import devices, differences
from scaling.analysis.quality import clocks
from scaling.analysis.quality.clocks import DeviceSamples
from scaling.analysis.quality.contention import Stolen
from scaling.analysis.results.doctor import Problem
from scaling.hardware.telemetry import HostRecord
from scaling.records.launch import Launch
from scaling.settings.topology import CPU

Facts = Mapping[int, Mapping[str, Any]]
"""By rank, the flat content of env-<r>.json."""


def by_device(facts: Facts) -> list[list[int]]:
    """The ranks of each device that tells its UUID."""
    by_uuid: dict[tuple[Any, Any], list[int]] = {}
    for rank, flat in sorted(facts.items()):
        if flat.get("device") not in (None, CPU) and flat.get("device_uuid"):
            by_uuid.setdefault((flat.get("host"), flat["device_uuid"]), []).append(rank)
    return list(by_uuid.values())


def labels(facts: Facts) -> tuple[str, ...]:
    """A line where ranks share a device, or gradients go through host memory."""
    backends = {flat.get("backend") for flat in facts.values() if flat.get("device") not in (None, CPU)}
    shared = [ranks for ranks in by_device(facts) if len(ranks) > 1]
    lines = [
        f"{differences.ranks_text(ranks)} share one device and its time, so this is not the efficiency of {len(ranks)} "
        "devices"
        for ranks in shared
    ]
    if "gloo" in backends and len(facts) > 1:
        lines.append(
            "host-staged: Gloo carries the gradients through host memory, so bandwidth and latency are not those of a "
            "link between devices"
        )
    if "nccl" in backends and shared:
        lines.append(
            "NCCL joins ranks of one device (NCCL_MULTI_RANK_GPU_ENABLE), so its traffic crosses no link"
        )
    return tuple(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preflight:
    """What the environments and the telemetry of all launches tell."""

    warnings: tuple[str, ...]
    """One line each, each given once whatever the number of launches."""
    samples: Mapping[tuple[int, int], DeviceSamples]
    """By (launch, rank): those of the rank's device; empty without GPUs."""
    states: Mapping[int, tuple[Mapping[str, float], ...]]
    """By launch: what rank 0's host and device did, a row a sample."""
    stolen: tuple[Stolen, ...]
    """By machine: how often its hypervisor took its processors away."""


def problems(launch: Launch) -> tuple[str, ...]:
    """What differs between a launch's ranks and what is wrong with their devices, a line each with its remedy."""
    listed = list(differences.problems(differences.differences(launch.facts)))
    for host, used in _hosts(launch):
        listed += devices.problems(host, {index: rank for rank, index in used.items()})
    return _lines(listed)


def inspect(launches: Iterable[Launch]) -> Preflight:
    """Everything in one pass, since a host's telemetry is large and is dropped before the next one is read."""
    warnings: list[str] = []
    samples: dict[tuple[int, int], DeviceSamples] = {}
    states: dict[int, tuple[Mapping[str, float], ...]] = {}
    stolen: dict[str, list[float]] = {}
    pressed: dict[str, Mapping[str, float]] = {}
    firsts: dict[int, Mapping[str, Any]] = {}
    for launch in launches:
        facts, first = launch.facts, launch.first
        host_of_first = 0 if first is None or first.host is None else first.host
        firsts |= {launch.index: facts[0]} if 0 in facts else {}
        listed = list(differences.problems(differences.differences(facts)))
        shares: dict[str, list[float]] = {}
        for host, used in _hosts(launch):
            listed += devices.problems(host, {index: rank for rank, index in used.items()})
            for rank, index in used.items():
                samples[launch.index, rank] = clocks.device_samples(host, index)
            if host.host == host_of_first:
                states[launch.index] = tuple(clocks.states(host, used.get(0)))
            # Emulated hosts share a machine: one is enough.
            shares[host.hostname], pressed[host.hostname] = clocks.stolen_shares(host), clocks.pressed(host)
        for hostname, host_shares in shares.items():
            stolen.setdefault(hostname, []).extend(host_shares)
        warnings += [*_lines(listed), *labels(facts)]
    warnings += differences.between_launches(firsts)
    return Preflight(
        warnings=tuple(dict.fromkeys(warnings)),
        samples=samples,
        states=states,
        stolen=tuple(
            Stolen(hostname=name, shares=tuple(all_), pressed=pressed[name])
            for name, all_ in stolen.items()
            if all_
        ),
    )


def _hosts(launch: Launch) -> Iterator[tuple[HostRecord, dict[int, int]]]:
    """Each host, and the NVML index of the device of each of its ranks."""
    facts: dict[int | None, dict[int, Mapping[str, Any]]] = {}
    for rank, environment in launch.environments.items():
        facts.setdefault(environment.host, {})[rank] = environment.facts
    for host in launch.hosts():
        yield host, devices.indices(host, facts.get(host.host, {}))


def _lines(listed: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(
        f"{'' if p.rank is None or 'rank' in p.what else f'rank {p.rank}: '}{p.what}; {p.remedy}"
        for p in listed
    )
