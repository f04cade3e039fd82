"""The one reader of a launch's folder: what its ranks and hosts wrote beside their records, each file parsed once.

A file that is missing or damaged is left out. The records themselves (rank-<r>.jsonl) are read by
scaling.records.rank_file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from scaling.hardware import telemetry
from scaling.hardware.telemetry import PULSE_SCHEMA, HostRecord, RankPulse
from scaling.reading import RefusedError, as_number, parse_json, read_bytes
from scaling.reading import read_json as read_json_value
from scaling.records import checkup
from scaling.records.checkup import KernelTable, RankCheck, Roofline
from scaling.records.files import read_if_whole
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.settings.environment import VARIABLE
from scaling.settings.plan import CONTENT_SCHEMA, Content, Outcome, Outcomes, Plan
from scaling.settings.plan import ENDED_SCHEMA as CASES_SCHEMA

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What one rank ran on: env-0.json, or a line of envs-<host>.jsonl."""

    rank: int
    host: int | None
    device_name: str | None
    cpu: str | None
    buffers_bytes: int
    """Buffers of the module, which DDP broadcasts."""
    tokens_per_sample: int | None
    """None where the model does not say it."""
    facts: Mapping[str, Any]
    """Everything that the rank wrote but its number, flat; an environment variable is `env.NAME`."""

    @property
    def processor(self) -> str | None:
        """The device that computes: a GPU's name, else the CPU's."""
        return self.device_name or self.cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank needed, by world size: a line of memories-<host>.jsonl."""

    rank: int
    strategies: tuple[Mapping[int, Mapping[str, int]], ...]
    """By world size: bytes by name (PeakMemory), those that are known; of each strategy side by side, in order."""
    device_clock_bound_ns: int | None
    """How far the device's clock may be off from its host's; None where it was not noted."""


class Launch:
    """What one launch left. Make a new one to see what was written since."""

    def __init__(self, folder: LaunchFolder, plan: Plan) -> None:
        self.folder = folder
        self.index = folder.index
        self._ranks = range(plan.ranks)
        self._hosts = range(plan.hosts)

    @cached_property
    def first(self) -> Environment | None:
        """What rank 0 ran on."""
        record = _read(self.folder.env(0))
        return _environment(0, record) if record else None

    @cached_property
    def environments(self) -> Mapping[int, Environment]:
        """What each rank ran on, in the order of the ranks."""
        listed = _by_rank(self.folder.envs(host) for host in self._hosts)
        others = {rank: _environment(rank, listed[rank]) for rank in self._ranks[1:] if rank in listed}
        return ({0: self.first} if self.first else {}) | others

    @property
    def facts(self) -> Mapping[int, Mapping[str, Any]]:
        """The environments as flat facts, by rank."""
        return {rank: environment.facts for rank, environment in self.environments.items()}

    @cached_property
    def memories(self) -> tuple[RankMemory, ...]:
        """What each rank held."""
        listed = _by_rank(self.folder.memories(host) for host in self._hosts)
        return tuple(_memory(rank, listed[rank]) for rank in self._ranks if rank in listed)

    @cached_property
    def checks(self) -> tuple[RankCheck, ...]:
        """What each rank found in a checkup (`scaling doctor`)."""
        checks = (read_if_whole(self.folder.check(rank), RankCheck, checkup.SCHEMA) for rank in self._ranks)
        return tuple(check for check in checks if check is not None)

    @cached_property
    def kernels(self) -> KernelTable | None:
        """What each operator of rank 0's step takes; None where it was not measured."""
        return read_if_whole(self.folder.kernels(0), KernelTable, checkup.SCHEMA)

    @cached_property
    def roofline(self) -> Roofline | None:
        """What rank 0's device gives and its step asks for."""
        return read_if_whole(self.folder.roofline(0), Roofline, checkup.SCHEMA)

    @cached_property
    def content(self) -> Content | None:
        """What the launch measured, where that is less than the plan says."""
        return read_content(self.folder)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How the launch's cases stand."""
        outcomes = read_if_whole(self.folder.cases, Outcomes, CASES_SCHEMA)
        return outcomes.outcomes if outcomes else ()

    def hosts(self) -> Iterator[HostRecord]:
        """Each host's telemetry, read when it is asked for and not kept: hours of samples take gigabytes."""
        for host in self._hosts:
            record = telemetry.read(self.folder.telemetry(host))
            if record is not None:
                yield record


class Launches:
    """All launches of a run, in order. Made once a rebuild and handed to everything that reads them."""

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        self._all = tuple(Launch(launch, plan) for launch in folder.launches())

    def __iter__(self) -> Iterator[Launch]:
        return iter(self._all)

    @cached_property
    def described(self) -> Launch | None:
        """The last launch whose rank 0 wrote what it ran on: it stands for the run."""
        return next((launch for launch in reversed(self._all) if launch.first), None)

    @property
    def environment(self) -> Environment | None:
        """What rank 0 of that launch ran on."""
        return self.described.first if self.described else None

    @property
    def facts(self) -> Mapping[int, Mapping[str, Any]]:
        """Flat facts of every rank, from the last launch of which any are known."""
        return next((launch.facts for launch in reversed(self._all) if launch.environments), {})

    @property
    def memories(self) -> tuple[RankMemory, ...]:
        return tuple(memory for launch in self for memory in launch.memories)

    @property
    def content(self) -> Content | None:
        """What the last launch that measured less than the plan says did measure."""
        return next((launch.content for launch in reversed(self._all) if launch.content), None)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How the cases stand, later launches last."""
        return tuple(outcome for launch in self for outcome in launch.outcomes)

    def nccl_logs(self) -> Iterator[list[Path]]:
        """NCCL's logs of each launch, the last launch first."""
        return (launch.folder.nccl_logs() for launch in reversed(self._all))


def described(launch: LaunchFolder, host: int) -> int:
    """How many ranks of a host have written what they run on; rank 0 runs on host 0."""
    return len(_by_rank([launch.envs(host)])) + (host == 0 and launch.env(0).exists())


def read_content(launch: LaunchFolder) -> Content | None:
    """What a launch measures, where that is less than the plan says."""
    return read_if_whole(launch.content, Content, CONTENT_SCHEMA)


def _read(path: Path) -> dict[str, Any] | None:
    """A file with an object; None where there is none that can be read."""
    try:
        record = read_json_value(path)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _by_rank(paths: Iterable[Path]) -> dict[int, dict[str, Any]]:
    """The lines of several files by their rank; the last line of a rank counts, one that is cut off is left out."""
    records = {}
    for path in paths:
        with contextlib.suppress(OSError, RefusedError):
            for line in read_bytes(path).splitlines():
                with contextlib.suppress(ValueError):
                    record = parse_json(line)
                    if isinstance(record, dict) and type(record.get("rank")) is int:
                        records[record["rank"]] = record
    return records


def _environment(rank: int, record: dict[str, Any]) -> Environment:
    facts = {k: v for k, v in record.items() if k not in ("schema", "rank", "environment")}
    variables = record.get("environment")
    if isinstance(variables, dict):
        facts |= {f"{VARIABLE}{name}": value for name, value in variables.items()}
    return Environment(
        rank=rank,
        host=_as(int, facts.get("host")),
        device_name=_as(str, facts.get("device_name")),
        cpu=_as(str, facts.get("cpu")),
        buffers_bytes=_as(int, facts.get("buffers_bytes")) or 0,
        tokens_per_sample=_as(int, facts.get("tokens_per_sample")),
        facts=facts,
    )


def _as(kind: type[T], value: Any) -> T | None:
    return value if isinstance(value, kind) else None


def _peaks(sizes: Any) -> dict[int, dict[str, int]]:
    """Bytes by name, by world size; what cannot be read is left out."""
    sizes = sizes.items() if isinstance(sizes, dict) else ()
    numbered = ((as_number(n), peaks) for n, peaks in sizes)
    by_size = {n: peaks for n, peaks in numbered if n is not None and isinstance(peaks, dict)}
    counted = {n: {k: v for k, v in peaks.items() if isinstance(v, int)} for n, peaks in by_size.items()}
    return {n: numbers for n, numbers in counted.items() if numbers}


def _memory(rank: int, record: dict[str, Any]) -> RankMemory:
    several = record.get("strategies")
    peaks = _peaks(record.get("world_sizes"))
    return RankMemory(
        rank=rank,
        strategies=tuple(map(_peaks, several)) if isinstance(several, list) else (peaks,),
        device_clock_bound_ns=_as(int, record.get("device_clock_bound_ns")),
    )


CPU_SHARE = 0.02
"""A rank that uses less of one core waits: looking at the store every 2 s takes less than a tenth of it."""
IO_BYTES_S = 4096
"""A rank that reads and writes less a second moves no data."""
BYTES_MAX = 1 << 20

Pulse = Mapping[str, RankPulse]
"""Pulses of one host's ranks, by rank."""


def read_pulse(launch: LaunchFolder, host: int) -> Pulse:
    """The last pulse of a host; empty where none was written or can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        data = parse_json(read_bytes(launch.pulse(host), BYTES_MAX))
        if data["schema"] == PULSE_SCHEMA:
            return {rank: RankPulse(**values) for rank, values in data["ranks"].items()}
    return {}


def has_started(before: Pulse, now: Pulse) -> bool:
    """Whether some rank has been seen for the first time."""
    return not before.keys() >= now.keys()


def has_beaten(before: Pulse, now: Pulse) -> bool:
    """Whether some rank has finished a step, a collective or a phase in between."""
    return any(pulse.beats != before[rank].beats for rank, pulse in now.items() if rank in before)


def has_moved(before: Pulse, now: Pulse) -> bool:
    """Whether some rank has used the processor or moved data in between."""
    return any(_moved(before[rank], pulse) for rank, pulse in now.items() if rank in before)


def _moved(before: RankPulse, now: RankPulse) -> bool:
    seconds = now.at_s - before.at_s
    used_s, moved_bytes = now.cpu_s - before.cpu_s, now.io_bytes - before.io_bytes
    return used_s > CPU_SHARE * seconds or moved_bytes > IO_BYTES_S * seconds
