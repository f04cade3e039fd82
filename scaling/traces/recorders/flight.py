"""One rank's dump of PyTorch's flight recorder: JSON, or the pickle that a time-out leaves.

Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp. JSON and pickle differ: times that are not known are 0 in one
and null in the other, and only the pickle has call stacks.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from scaling.reading import RefusedError, as_number, parse_json, read_bytes
from scaling.spec.plan import RANKS_MAX
from scaling.traces.profiler.signs import COUNT_MAX, element_bytes
from scaling.traces.recorders.plain_pickle import read_pickle

EXPECTED = "a dump of PyTorch's flight recorder is expected, with `entries` and `pg_config`"
ENTRIES_MAX = 200_000
"""Of one dump; the ring's default is 2,000."""
_RANK = re.compile(r"rank[-_ ]?(\d+)", re.IGNORECASE)
_OF_TORCH = ("torch/", "/torch/", "python3", "<frozen")

Sizes = tuple[tuple[int, ...], ...]


class _Frame(msgspec.Struct):
    name: str = ""
    filename: str = ""
    line: int = 0


class _Entry(msgspec.Struct):
    """An entry as it is written. Others of its fields are not used."""

    record_id: int
    profiling_name: str
    time_created_ns: int
    process_group: tuple[str, str] = ("", "")
    collective_seq_id: int = 0
    is_p2p: bool = False
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    time_discovered_completed_ns: int | None = None
    duration_ms: float | None = None
    state: str = ""
    retired: bool = False
    timeout_ms: int | None = None
    frames: tuple[_Frame, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One collective that a rank has issued, or a point-to-point operation."""

    record: int
    """Counter of the ring: where it begins above 0, older entries were overwritten."""
    group: str
    described: str
    seq: int
    """Number of the collective in its group."""
    p2p: bool
    kind: str
    """The name without its back end: `all_reduce`, `_allgather_base`, `recv 3<-0`."""
    inputs: Sizes
    outputs: Sizes
    dtypes: tuple[str, ...]
    bytes: int | None
    """nccl-tests' size: the larger of a rank's input and output."""
    created_ns: int
    """Wall clock of the host when the call was made, not when it ran."""
    duration_ms: float | None
    """Time on the device, waiting for peers included; None unless the recorder was asked for timing."""
    done: bool
    timeout_ms: int | None
    line: str
    """The user's line that issued it; empty in a JSON dump."""

    @property
    def what(self) -> str:
        """`all_reduce of [4096] Float`, as a person says it."""
        shape = ", ".join("x".join(map(str, s)) if s else "scalar" for s in self.inputs[:4])
        more = "" if len(self.inputs) <= 4 else f" and {len(self.inputs) - 4} more"
        dtype = f" {self.dtypes[0]}" if self.dtypes else ""
        return f"{self.kind} of [{shape}{more}]{dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dump:
    """One rank's file."""

    path: Path
    rank: int | None
    """By the file's name; the dump does not hold it."""
    entries: tuple[Entry, ...]
    members: dict[str, tuple[int, ...]]
    """Ranks of each group, where the dump lists them. Gloo's dumps do not."""
    odd: int
    """Entries that cannot be read; left out."""
    irregular: int
    """Places at which the ring's counter, or that of a group, does not go on by one."""


def read_dump(path: Path) -> Dump:
    """Read one rank's dump. OSError or RefusedError, with a reason."""
    data = read_bytes(path)
    found = read_pickle(data) if data[:1] == b"\x80" else parse_json(data)
    if not isinstance(found, dict) or not {"entries", "pg_config", "pg_status"} & found.keys():
        raise RefusedError(f"it is another document; {EXPECTED}")
    listed = found.get("entries", [])
    if not isinstance(listed, list) or len(listed) > ENTRIES_MAX:
        raise RefusedError(f"its `entries` are no list of at most {ENTRIES_MAX}")
    entries = sorted((e for e in map(_entry, listed) if e is not None), key=lambda e: e.record)
    by_name = _RANK.findall(path.name)
    rank = as_number(by_name[-1]) if by_name else as_number(path.name.rpartition("_")[2])
    return Dump(
        path=path,
        rank=rank if rank is not None and rank < RANKS_MAX else None,
        entries=tuple(entries),
        members=_members(found.get("pg_config")),
        odd=len(listed) - len(entries),
        irregular=_irregular(entries),
    )


def _irregular(entries: Sequence[Entry]) -> int:
    last: dict[tuple[str, bool], int] = {}
    found = sum(b.record != a.record + 1 for a, b in pairwise(entries))
    for e in entries:
        before = last.get((e.group, e.p2p))
        found += before is not None and e.seq not in (before, before + 1)
        last[e.group, e.p2p] = e.seq
    return found


def _entry(value: Any) -> Entry | None:
    """None for one that is damaged."""
    try:
        raw = msgspec.convert(value, _Entry)
    except (msgspec.ValidationError, RecursionError):
        return None
    numbers = (raw.record_id, raw.collective_seq_id, raw.time_created_ns)
    sizes = [n for shape in (*raw.input_sizes, *raw.output_sizes) for n in shape]
    took = raw.duration_ms
    if not all(0 <= n < 2**63 for n in (*numbers, *sizes)):
        return None
    if took is not None and not (math.isfinite(took) and 0 <= took < 1e9):
        return None
    name = raw.profiling_name.partition(":")[2] or raw.profiling_name
    completed = raw.time_discovered_completed_ns
    return Entry(
        record=raw.record_id,
        group=raw.process_group[0],
        described=raw.process_group[1],
        seq=raw.collective_seq_id,
        p2p=raw.is_p2p or name.startswith(("send ", "recv ")),
        kind=name,
        inputs=raw.input_sizes,
        outputs=raw.output_sizes,
        dtypes=raw.input_dtypes,
        bytes=_bytes(raw),
        created_ns=raw.time_created_ns,
        duration_ms=took,
        done=raw.retired or raw.state == "completed" or bool(completed),
        timeout_ms=raw.timeout_ms,
        line=_line(raw.frames),
    )


def _bytes(raw: _Entry) -> int | None:
    def total(sizes: Sizes, dtypes: tuple[str, ...]) -> int | None:
        each = [element_bytes(d) for d in dtypes]
        if len(each) != len(sizes) or not sizes:
            return None
        found = sum(math.prod(s) * (e or 0) for s, e in zip(sizes, each, strict=True))
        return found if all(each) and found < COUNT_MAX else None

    known = [
        n for n in (total(raw.input_sizes, raw.input_dtypes), total(raw.output_sizes, raw.output_dtypes)) if n
    ]
    return max(known, default=None)


def _line(frames: tuple[_Frame, ...]) -> str:
    """The innermost frame that is not torch's or Python's own, else the innermost."""
    own = [f for f in frames if not any(part in f.filename for part in _OF_TORCH)]
    chosen = own[0] if own else frames[0] if frames else None
    return f"{chosen.filename.rpartition('/')[2]}:{chosen.line} {chosen.name}" if chosen else ""


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    """The dump lists a group's ranks as text, `[0, 1]`."""
    found = {}
    for name, group in config.items() if isinstance(config, dict) else ():
        told = group.get("ranks") if isinstance(group, dict) else None
        try:
            ranks = json.loads(told) if isinstance(told, str) else told
        except (ValueError, RecursionError):
            continue
        if isinstance(ranks, list) and ranks and all(type(r) is int and 0 <= r < RANKS_MAX for r in ranks):
            found[str(name)] = tuple(ranks)
    return found
