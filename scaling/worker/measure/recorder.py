"""Write one rank's file of records. A block stays in memory while it runs and is written after its last step."""

from __future__ import annotations

import binascii
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

from scaling.errors import let_go
from scaling.reading import open_to_write, system_text
from scaling.records.encoding import Sealer, pack_block
from scaling.records.format import EndRecord, HeadRecord, PackedRecord, Record, RecordedBlock, as_line
from scaling.worker.accelerator.clock import is_virtual, now_ns


class Recorder:
    """Appends lines to `rank-<r>.jsonl`. Nothing is written between the first and the last step of a block."""

    def __init__(self, path: Path, head: HeadRecord, *, flush_s: float = 0.0) -> None:
        """A block may wait in memory for `flush_s` seconds before it is flushed."""
        self._file = open_to_write(path)
        self._pending = bytearray()
        """Lines that are not written yet. A forked child has a copy, and nothing that writes it at the child's end."""
        self._flush_ns = int(flush_s * 1e9)
        self._sealer = Sealer()
        self.blocks = 0
        """Blocks written so far."""
        self.steps = 0
        """Steps in them."""
        self.note(head)

    def note(self, record: Record) -> None:
        """Write one line that belongs to no block, and flush."""
        self._line(record)
        self._flush()

    def block(self, recorded: RecordedBlock) -> None:
        """Write the steps of one block, then the block itself."""
        block = recorded.block
        for packed in pack_block(block.id, recorded.steps, recorded.collectives):
            self._line(packed)
        self._line(block)
        self.blocks += 1
        self.steps += len(recorded.steps)
        if now_ns() - self._flushed_ns >= self._flush_ns:
            self._flush()

    def end(self) -> None:
        """Write the last line of a launch that came to its end."""
        self.note(EndRecord(state="done", steps=self.steps, blocks=self.blocks))

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._file.close()

    def _flush(self) -> None:
        while self._pending:  # a disk that is nearly full takes a part
            del self._pending[: self._file.write(self._pending)]
        self._flushed_ns = now_ns()

    def _line(self, record: Record) -> None:
        line = json.dumps(as_line(record), separators=(",", ":"), default=_base64) + "\n"
        sealed = self._sealer.pass_on if isinstance(record, PackedRecord) else self._sealer.seal
        self._pending += sealed(line).encode("ascii")


def _base64(value: bytes) -> str:
    return binascii.b2a_base64(value, newline=False).decode()


class Reading(NamedTuple):
    """Clocks and counters at the begin or end of a stretch, ns."""

    time_ns: int
    cpu_ns: int
    thread_cpu_ns: int
    delayed_ns: int

    @classmethod
    def take(cls) -> Reading:
        """Read them now, for the calling thread."""
        if is_virtual():  # this machine's processor time cannot be compared with it
            return cls(now_ns(), 0, 0, -1)
        return cls(now_ns(), time.process_time_ns(), time.thread_time_ns(), _run_delay_ns())


class Usage:
    """Wall and CPU time of a stretch, and how long its thread waited for a core."""

    begin: Reading
    end: Reading

    def __enter__(self) -> Usage:  # noqa: PYI034  # typing.Self is younger than Python 3.10
        self.begin = Reading.take()
        return self

    def __exit__(self, *_error: object) -> None:
        self.end = Reading.take()

    def fields(self) -> dict[str, Any]:
        """The fields of a BlockRecord that come from the two readings."""
        begin, end = self.begin, self.end
        return {
            "begin_ns": begin.time_ns,
            "end_ns": end.time_ns,
            "cpu_ns": end.cpu_ns - begin.cpu_ns,
            "thread_cpu_ns": end.thread_cpu_ns - begin.thread_cpu_ns,
            "delayed_ns": -1 if end.delayed_ns < 0 else end.delayed_ns - begin.delayed_ns,
        }


def resident_bytes() -> int:
    """Resident memory of this process; 0 where the kernel does not tell."""
    pages = (system_text(Path("/proc/self/statm")) or "0 0").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _run_delay_ns() -> int:
    """Time this thread has spent runnable without running, ns (second number of schedstat); -1 if unknown."""
    with let_go(OSError, ValueError, IndexError):
        # os.open, since pathlib takes several times as long.
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        try:
            return int(os.read(file, 128).split()[1])
        finally:
            os.close(file)
    return -1
