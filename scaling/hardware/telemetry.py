"""telemetry-<host>.jsonl: a head line with what does not change, then one line a sample.

    {"t":"head", "schema":1, "host":..., "hostname":..., "gpus":[...], "nics":[...], ...}
    {"t":"sample", "time_ns":..., "gpus":[...], "system":{...}}

Times are the host's CLOCK_MONOTONIC_RAW, as in its ranks' records, so the two join by time. Reading ends at a line that
was cut off.

pulse-<host>.json: what the ranks of a host have done so far, written every PERIOD_S by the host's sampler.

    {"schema":1, "ranks":{"0":{"at_s":86400.5, "beats":512, "cpu_s":18.42, "io_bytes":1048576}, ...}}

`beats` are finished steps, collectives and phases, which a rank counts in memory that it shares by name (the worker's
session/progress.py); null where that cannot be read. Processor time and bytes are those of the rank and of
its children, such as data workers. The launcher tells a rank that is slow from one that hangs by them.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from scaling.reading import LOG_BYTES_MAX, open_to_write, parse_json, read_bytes

T = TypeVar("T")

SCHEMA = 1
GROUPS = ("pressure_ns", "network", "ports")
"""What the system has several of, in older files too; its other values are one figure each."""
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
        return HostRecord(
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


def _samples(lines: Sequence[bytes]) -> Iterator[Sample]:
    """Every sample up to the first line that is none."""
    for line in lines:
        try:
            data = parse_json(line, any_depth=True)
            gpus, (system,) = _objects(data["gpus"]), _objects([data["system"]])
            time_ns = _typed(data["time_ns"], int)
            for gpu in gpus:
                _require(gpu.values(), _COUNTS)
            _require([value for name, value in system.items() if name not in GROUPS], _FIGURES)
            for group in (system[name] for name in GROUPS if system.get(name) is not None):
                for part in _typed(group, dict).values():
                    _require(part.values() if isinstance(part, dict) else [part], _FIGURES)
        except (ValueError, KeyError, TypeError):
            return
        yield Sample(time_ns=time_ns, gpus=gpus, system=system)


def _gpus(values: Any) -> tuple[dict[str, Any], ...]:
    gpus = _facts(
        values, ("uuid", "name", "pci", "driver", "vbios", "lost"), ("nvlinks", "cpus", "peers", "pci_path")
    )
    for gpu in gpus:
        _typed(gpu["index"], int)
    return gpus


def _facts(values: Any, texts: Sequence[str], lists: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """The facts of several devices; TypeError where one has another type than the sampler writes."""
    devices = _objects(values)
    for device in devices:
        for name, value in device.items():
            if isinstance(value, list) and name in lists:
                _require(value, _FIGURES | {str})
            else:
                _require([value], _TEXTS if name in texts else _FIGURES)
    return devices


def _require(values: Iterable[Any], kinds: set[Any]) -> None:
    if not kinds.issuperset(map(type, values)):
        raise TypeError("another type is expected")


def _typed(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{kind.__name__} expected")
    return value


def _objects(values: Any) -> tuple[dict[str, Any], ...]:
    return tuple(_typed(value, dict) for value in _typed(values, list))


PULSE_SCHEMA = 1
PERIOD_S = 2.0
BEATS_BYTES = 8

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_MOVED = ("rchar", "wchar", "read_bytes", "write_bytes")
"""Fields of /proc/<pid>/io: bytes through reads and writes, and through memory that is mapped from files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPulse:
    """What one rank has done since it started."""

    at_s: float
    """When, by the host's monotonic clock."""
    beats: int | None
    cpu_s: float
    io_bytes: int


class RankWatch:
    """The ranks of this host: the children of the torchrun that started the rank `parent`."""

    def __init__(self, parent: int, memory: str) -> None:
        """`parent`: one of the ranks; `memory`: name of the memory (memfd) in which each counts its beats."""
        self._memory = memory
        self._agent = int(self._stat(parent)[1])
        self._names: dict[int, int | None] = {}

    def pulse(self) -> dict[int, RankPulse]:
        """What each rank that runs has done, by torchrun's number."""
        pulses = {}
        for pid in self._children(self._agent):
            # One that ends meanwhile, or has only begun, leaves out its own pulse.
            with contextlib.suppress(OSError, ValueError, IndexError, struct.error):
                rank = self._rank(pid)
                if rank is not None:
                    pulses[rank] = self._pulse_of(pid)
        return pulses

    def _pulse_of(self, pid: int) -> RankPulse:
        cpu, moved = 0.0, 0
        for each in (pid, *self._children(pid)):
            if each == os.getpid():
                continue
            with contextlib.suppress(OSError):  # a data worker that has just ended
                cpu += sum(map(int, self._stat(each)[11:15])) * _TICK_S
                fields = dict(line.split(": ") for line in self._text(each, "io").splitlines())
                moved += sum(int(fields[name]) for name in _MOVED)
        return RankPulse(
            at_s=round(time.monotonic(), 2), beats=self._beats(pid), cpu_s=round(cpu, 2), io_bytes=moved
        )

    def _beats(self, pid: int) -> int | None:
        with contextlib.suppress(OSError):
            for descriptor in Path("/proc", str(pid), "fd").iterdir():
                if self._memory in str(descriptor.readlink()):
                    return int(struct.unpack("q", descriptor.read_bytes()[:BEATS_BYTES])[0])
        return None

    def _rank(self, pid: int) -> int | None:
        if pid not in self._names:
            entries = self._text(pid, "environ").split("\0")
            self._names[pid] = next((int(e[5:]) for e in entries if e.startswith("RANK=")), None)
        return self._names[pid]

    def _children(self, pid: int) -> list[int]:
        """Those that the main thread started."""
        try:
            return [int(word) for word in self._text(pid, f"task/{pid}/children").split()]
        except OSError:
            return []

    def _stat(self, pid: int) -> list[str]:
        """Fields of /proc/<pid>/stat from the third on: state, parent, ..."""
        return self._text(pid, "stat").rpartition(")")[2].split()

    def _text(self, pid: int, name: str) -> str:
        return Path("/proc", str(pid), name).read_text(encoding="utf-8", errors="replace")


def record(path: Path, parent: int, memory: str) -> None:
    """Write the pulse from now on, on a thread of its own: a driver that does not answer must not hold it up."""

    def beat() -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):
            ranks = RankWatch(parent, memory)
            while True:
                _write(path, ranks.pulse())
                time.sleep(PERIOD_S)

    threading.Thread(target=beat, name="pulse", daemon=True).start()


def _write(path: Path, ranks: dict[int, RankPulse]) -> None:
    document = {"schema": PULSE_SCHEMA, "ranks": {rank: asdict(pulse) for rank, pulse in ranks.items()}}
    part = path.with_name(f".{path.name}.part")
    with open_to_write(part) as file:
        file.write(json.dumps(document).encode())
    part.replace(path)
