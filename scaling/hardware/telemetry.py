"""telemetry-<host>.jsonl: a head line with what does not change, then one line a sample.

    {"t":"head", "schema":1, "host":..., "hostname":..., "gpus":[...], "nics":[...], ...}
    {"t":"sample", "time_ns":..., "gpus":[...], "system":{...}}

Times are the host's CLOCK_MONOTONIC_RAW, as in its ranks' records, so the two join by time. Reading ends at a line that
was cut off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scaling.reading import LOG_BYTES_MAX, parse_json, read_bytes

T = TypeVar("T")

SCHEMA = 1
GROUPS = ("pressure_ns", "network", "ports")
"""What the system has several of; its other values are one figure each."""
_COUNTS: set[Any] = {int, bool, type(None)}
_FIGURES: set[Any] = {*_COUNTS, float}
_TEXTS: set[Any] = {str, type(None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of a host at one time."""

    time_ns: int
    gpus: tuple[dict[str, Any], ...]
    system: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRecord:
    """One host's file."""

    host: int
    hostname: str
    gpus: tuple[dict[str, Any], ...]
    """What is fixed for each GPU (scaling/hardware/nvml.py)."""
    nics: tuple[dict[str, Any], ...]
    nodes: dict[str, str]
    acs_bridges: int | None
    samples: tuple[Sample, ...]


def read(path: Path) -> HostRecord | None:
    """A host's file up to the first line that is not whole; None where it is missing, damaged or of another format."""
    try:
        first, *lines = read_bytes(path, LOG_BYTES_MAX).splitlines()
        head = parse_json(first)
        if head["schema"] != SCHEMA:
            return None
        record = HostRecord(
            host=_typed(head["host"], int),
            hostname=_typed(head["hostname"], str),
            gpus=_gpus(head["gpus"]),
            nics=_facts(head["nics"], ("name", "kind", "rate", "state"), ("pci",)),
            nodes={name: _typed(cpus, str) for name, cpus in head["nodes"].items()},
            acs_bridges=None if head["acs_bridges"] is None else _typed(head["acs_bridges"], int),
            samples=tuple(_samples(lines)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no file, or one of another program
        return None
    return record


def _samples(lines: Sequence[bytes]) -> Iterator[Sample]:
    """Every sample up to the first line that is none."""
    for line in lines:
        try:
            data = parse_json(line, any_depth=True)
            gpus, (system,) = _objects(data["gpus"]), _objects([data["system"]])
            time_ns = _typed(data["time_ns"], int)
        except (ValueError, KeyError, TypeError):
            return
        groups = [system[name] for name in GROUPS if system.get(name) is not None]
        figures = [value for name, value in system.items() if name not in GROUPS]
        if not all(_COUNTS.issuperset(map(type, gpu.values())) for gpu in gpus):
            return
        if not _FIGURES.issuperset(map(type, figures)) or not all(map(_are_counters, groups)):
            return
        yield Sample(time_ns=time_ns, gpus=gpus, system=system)


def _are_counters(group: Any) -> bool:
    """Whether a group holds figures, or objects of figures."""
    if not isinstance(group, dict):
        return False
    parts = [part.values() if isinstance(part, dict) else (part,) for part in group.values()]
    return all(_FIGURES.issuperset(map(type, part)) for part in parts)


def _gpus(values: Any) -> tuple[dict[str, Any], ...]:
    found = _facts(
        values,
        ("uuid", "name", "pci", "driver", "vbios", "lost"),
        ("nvlinks", "cpus", "peers", "pci_path"),
    )
    for gpu in found:
        _typed(gpu["index"], int)
    return found


def _facts(values: Any, texts: Sequence[str], lists: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """The facts of several devices; TypeError where one has another type than the sampler writes."""
    for device in _objects(values):
        for name, value in device.items():
            if isinstance(value, list) and name in lists:
                _require(value, _FIGURES | {str})
            else:
                _require([value], _TEXTS if name in texts else _FIGURES)
    return _objects(values)


def _require(values: Sequence[Any], kinds: set[Any]) -> None:
    if not kinds.issuperset(map(type, values)):
        raise TypeError("another type is expected")


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected")
    return value


def _objects(values: Any) -> tuple[dict[str, Any], ...]:
    return tuple(_typed(value, dict) for value in _typed(values, list))
