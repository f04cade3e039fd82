"""A short check beside every run: ranks that differ, links and clocks that are not as promised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scaling.analysis.doctor import devices, differences, sharing
from scaling.analysis.quality import telemetry
from scaling.analysis.quality.clocks import DeviceSamples
from scaling.analysis.quality.contention import Stolen
from scaling.analysis.results.doctor import Problem
from scaling.hardware.telemetry import HostRecord
from scaling.records.launch import Launch

Facts = Mapping[int, Mapping[str, Any]]


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
    found, on = _differing(launch.facts), _by_host(launch)
    for host in launch.hosts():
        found += _of_devices(host, _devices(host, on))
    return _lines(found)


def inspect(launches: Iterable[Launch]) -> Preflight:
    """Everything in one pass, since a host's telemetry is large and is dropped before the next one is read."""
    warnings: list[str] = []
    samples: dict[tuple[int, int], DeviceSamples] = {}
    states: dict[int, tuple[Mapping[str, float], ...]] = {}
    stolen: dict[str, list[float]] = {}
    for launch in launches:
        facts, on = launch.facts, _by_host(launch)
        first = launch.environment(0)
        host_of_first = 0 if first is None or first.host is None else first.host
        found = _differing(facts)
        shares: dict[str, list[float]] = {}
        for host in launch.hosts():
            used = _devices(host, on)
            found += _of_devices(host, used)
            for rank, index in used.items():
                samples[launch.index, rank] = telemetry.device_samples(host, index)
            if host.host == host_of_first:
                states[launch.index] = tuple(telemetry.states(host, used.get(0)))
            shares[host.hostname] = telemetry.stolen_shares(
                host
            )  # emulated hosts share a machine: one is enough
        for hostname, own in shares.items():
            stolen.setdefault(hostname, []).extend(own)
        warnings += [*_lines(found), *sharing.labels(facts)]
    return Preflight(
        warnings=tuple(dict.fromkeys(warnings)),
        samples=samples,
        states=states,
        stolen=tuple(Stolen(hostname=name, shares=tuple(all_)) for name, all_ in stolen.items() if all_),
    )


def _differing(facts: Facts) -> list[Problem]:
    return list(differences.problems(differences.differences(facts)))


def _of_devices(host: HostRecord, used: Mapping[int, int]) -> list[Problem]:
    return list(devices.problems(host, {index: rank for rank, index in used.items()}))


def _by_host(launch: Launch) -> dict[int | None, dict[int, Mapping[str, Any]]]:
    """The facts of each host's ranks, by its number."""
    found: dict[int | None, dict[int, Mapping[str, Any]]] = {}
    for rank, environment in launch.environments.items():
        found.setdefault(environment.host, {})[rank] = environment.facts
    return found


def _devices(host: HostRecord, on: Mapping[int | None, Facts]) -> dict[int, int]:
    """Rank -> NVML index of its device, on one host. `on`: the facts of each host's ranks."""
    found = {rank: devices.index_of(host.gpus, own) for rank, own in on.get(host.host, {}).items()}
    return {rank: index for rank, index in found.items() if index is not None}


def _lines(found: Iterable[Problem]) -> tuple[str, ...]:
    return tuple(
        f"{'' if p.rank is None or 'rank' in p.what else f'rank {p.rank}: '}{p.what}; {p.remedy}"
        for p in found
    )
