"""One rank's file of records: kept in memory while a block runs, written after its last step."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from scaling.records import SCHEMA
from scaling.worker.clock import now_ns


class Recorder:
    """Appends lines to `rank-<r>.jsonl`. Nothing is written between the first and the last step of a block."""

    def __init__(self, path: Path, head: dict[str, Any], *, flush_s: float = 0.0) -> None:
        """A block may wait in memory for `flush_s` seconds."""
        self._file = path.open("w", encoding="ascii")
        self._flush_ns = int(flush_s * 1e9)
        self._line({"t": "head", "schema": SCHEMA, **head})
        self._flush()

    def note(self, kind: str, **fields: Any) -> None:
        """One line outside of any block."""
        self._line({"t": kind, **fields})
        self._flush()

    def block(
        self,
        fields: dict[str, Any],
        steps: Sequence[Sequence[int]],
        collectives: Sequence[Sequence[Sequence[int]]],
        usage: Usage,
    ) -> None:
        """The steps of one block, then the block itself. `collectives` is empty or one list a step."""
        for index, step in enumerate(steps):
            line: dict[str, Any] = {"t": "step", "b": fields["id"], "i": index, "s": step}
            if collectives:
                line["c"] = collectives[index]
            self._line(line)
        self._line({"t": "block", **fields, **usage.fields()})
        if now_ns() - self._flushed_ns >= self._flush_ns:
            self._flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def _flush(self) -> None:
        self._file.flush()
        self._flushed_ns = now_ns()

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")) + "\n")


class Reading(NamedTuple):
    """What a stretch's begin or end is read off from, ns."""

    time_ns: int
    cpu_ns: int
    thread_cpu_ns: int
    delayed_ns: int

    @classmethod
    def take(cls) -> Reading:
        """Now, on the calling thread."""
        return cls(now_ns(), time.process_time_ns(), time.thread_time_ns(), _run_delay_ns())


class Usage:
    """Wall and CPU time of a stretch, and how long its thread was kept waiting for a core."""

    begin: Reading
    end: Reading

    def __enter__(self) -> Usage:  # noqa: PYI034  # typing.Self is younger than Python 3.10
        self.begin = Reading.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end = Reading.take()

    def fields(self) -> dict[str, int]:
        """As the block line has them."""
        begin, end = self.begin, self.end
        return {
            "begin_ns": begin.time_ns,
            "end_ns": end.time_ns,
            "cpu_ns": end.cpu_ns - begin.cpu_ns,
            "thread_cpu_ns": end.thread_cpu_ns - begin.thread_cpu_ns,
            "delayed_ns": -1 if end.delayed_ns < 0 else end.delayed_ns - begin.delayed_ns,
        }


def resident_bytes() -> int:
    """What this process holds in memory now; 0 where the kernel does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _run_delay_ns() -> int:
    """Time this thread has spent runnable without running, ns (second number of schedstat); -1 if unknown."""
    try:
        file = os.open(
            "/proc/thread-self/schedstat", os.O_RDONLY
        )  # a pathlib read takes several times as long
        try:
            return int(os.read(file, 128).split()[1])
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return -1
