"""pulse-<host>.json: what the ranks of a host have done so far, written every PERIOD_S by the host's sampler.

    {"schema":1, "ranks":{"0":{"at_s":86400.5, "beats":512, "cpu_s":18.42, "io_bytes":1048576}, ...}}

`beats` are finished steps, collectives and phases, which a rank counts in memory that it shares by name (the worker's
session/beat.py); null where that cannot be read. Processor time and bytes are those of the rank and of
its children, such as data workers. The launcher tells a rank that is slow from one that hangs by them.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

SCHEMA = 1
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


class Ranks:
    """The ranks of this host: the children of the torchrun that started the rank `parent`."""

    def __init__(self, parent: int, memory: str, proc: Path = Path("/proc")) -> None:
        """`parent`: one of the ranks; `memory`: name of the memory (memfd) in which each counts its beats."""
        self._proc, self._memory = proc, memory
        self._agent = int(self._stat(parent)[1])
        self._names: dict[int, int | None] = {}

    def pulse(self) -> dict[int, RankPulse]:
        """What each rank that runs has done, by torchrun's number."""
        found = {}
        for pid in self._children(self._agent):
            rank = self._rank(pid)
            if rank is not None:
                with contextlib.suppress(OSError, ValueError, IndexError):
                    found[rank] = self._of(pid)
        return found

    def _of(self, pid: int) -> RankPulse:
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
            for descriptor in (self._proc / str(pid) / "fd").iterdir():
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
        return (self._proc / str(pid) / name).read_text(encoding="utf-8", errors="replace")


def record(path: Path, parent: int, memory: str) -> None:
    """Write the pulse from now on, on a thread of its own: a driver that does not answer must not hold it up."""

    def beat() -> None:
        with contextlib.suppress(OSError, IndexError, ValueError):
            ranks, stop = Ranks(parent, memory), threading.Event()
            while True:
                _write(path, ranks.pulse())
                stop.wait(PERIOD_S)

    threading.Thread(target=beat, name="pulse", daemon=True).start()


def _write(path: Path, ranks: dict[int, RankPulse]) -> None:
    document = {"schema": SCHEMA, "ranks": {rank: asdict(one) for rank, one in ranks.items()}}
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(document), encoding="ascii")
    part.replace(path)
