"""Records of NCCL Inspector (a profiler plugin of NCCL and RCCL): a JSON object for each collective that ended.

Fields and units: plugins/profiler/inspector of NCCL, README.md and inspector_json.cc. The size of ReduceScatter and
AllGather is one rank's share. A duration has whole microseconds and includes the wait for late ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from scaling.errors import InputError
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file
from scaling.spec.plan import RANKS_MAX
from scaling.traces.profiler.signs import COUNT_MAX, collective_of
from scaling.traces.recorders.by_size import Sample

OBJECT_BYTES_MAX = 1 << 20
"""One object; verbose ones with an event for each channel have some kilobytes."""
SHARES = ("reduce_scatter", "all_gather")
"""Collectives whose size is recorded as one rank's share."""
APART = 0.02
"""A stated bandwidth that differs by more than this, and by more than the clock's resolution, contradicts."""
TIME_US_MAX = 10**10


class _Header(msgspec.Struct):
    id: str
    rank: int
    n_ranks: int
    nnodes: int = 1
    comm_name: str = ""


class _Metadata(msgspec.Struct):
    hostname: str = ""
    pid: int = 0


class _Collective(msgspec.Struct):
    coll: str
    coll_sn: int
    coll_msg_size_bytes: int
    coll_exec_time_us: float
    coll_timing_source: str = ""
    coll_algobw_gbs: float | None = None


class _PointToPoint(msgspec.Struct):
    p2p: str
    p2p_peer: int
    p2p_msg_size_bytes: int
    p2p_exec_time_us: float


class _Record(msgspec.Struct):
    header: _Header
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    coll_perf: _Collective | None = None
    p2p_perf: _PointToPoint | None = None


_DECODER = msgspec.json.Decoder(_Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """A communicator that records name."""

    id: str
    name: str
    ranks: int
    nodes: int
    hosts: dict[int, str]
    """Host and process of each rank that wrote records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """All files together."""

    communicators: tuple[Communicator, ...]
    samples: tuple[Sample, ...]
    point_to_point: int
    """Records of sends and receives, which are counted only."""
    said: tuple[str, ...]


def read_inspector(paths: Iterable[Path]) -> Inspected:
    """Read all files. InputError where none of them has a record."""
    records: list[_Record] = []
    odd: Counter[str] = Counter()
    problems = []
    for path in paths:
        before = len(records)
        try:
            with open_file(path, LOG_BYTES_MAX) as file:
                for found in _objects(file):
                    record, why = _decoded(found)
                    if record is None:
                        odd[why] += 1
                    else:
                        records.append(record)
        except (OSError, RefusedError) as error:
            problems.append(f"{path}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        if len(records) == before:
            problems.append(f"{path}: no record of NCCL Inspector in it")
    if not records:
        raise InputError(
            f"{problems[0] if problems else 'no file'}; objects with `header` and `coll_perf` are expected, one a line"
        )
    return _together(records, odd, problems)


def _objects(file: BinaryIO) -> Iterator[bytes]:
    """Each JSON object: on one line, or indented over several."""
    begun: list[bytes] = []
    depth = size = 0
    for line in file:
        text = line.strip()
        if text.startswith(b"{") and text.endswith(b"}") and (not begun or text.startswith(b'{"header"')):
            if begun:
                yield b"".join(begun)
            begun, depth, size = [], 0, 0
            yield text
        elif text:
            begun.append(line)
            size += len(line)
            depth += text.count(b"{") - text.count(b"}")
            if depth <= 0 or size > OBJECT_BYTES_MAX:
                yield b"".join(begun)
                begun, depth, size = [], 0, 0
    if begun:
        yield b"".join(begun)


def _decoded(found: bytes) -> tuple[_Record | None, str]:
    """A record whose numbers can be; else None and what is wrong with it."""
    try:
        record = _DECODER.decode(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None, "cannot be read"
    who = record.header
    if not (0 <= who.rank < who.n_ranks <= RANKS_MAX):
        return None, "name a rank outside of their communicator"
    one = record.coll_perf
    if one is None:
        return (record, "") if record.p2p_perf is not None else (None, "hold no collective")
    if not (0 <= one.coll_sn < COUNT_MAX and 0 < one.coll_msg_size_bytes * who.n_ranks < COUNT_MAX):
        return None, "have a number or size that cannot be"
    if not 0 < one.coll_exec_time_us < TIME_US_MAX:
        return None, "have no duration of a microsecond or more"
    return record, ""


def _together(records: list[_Record], odd: Counter[str], problems: list[str]) -> Inspected:
    sizes: dict[str, Counter[int]] = {}
    for record in records:
        sizes.setdefault(record.header.id, Counter())[record.header.n_ranks] += 1
    ranks = {id_: counts.most_common(1)[0][0] for id_, counts in sizes.items()}
    named = {record.header.id: record.header.comm_name for record in records}
    alike = Counter(named.values())  # all groups along one axis of a mesh may have one name
    names = {
        id_: (name if alike[name] == 1 else f"{name} ({id_})") if name else id_ for id_, name in named.items()
    }
    communicators: dict[str, Communicator] = {}
    samples: dict[tuple[str, int, str, int], Sample] = {}
    contradicting = again = point_to_point = 0
    for record in records:
        who, one = record.header, record.coll_perf
        if who.n_ranks != ranks[who.id]:
            odd["give their communicator another number of ranks than most"] += 1
            continue
        known = communicators.setdefault(
            who.id,
            Communicator(id=who.id, name=names[who.id], ranks=who.n_ranks, nodes=who.nnodes, hosts={}),
        )
        known.hosts[who.rank] = f"{record.metadata.hostname} (process {record.metadata.pid})"
        if one is None:
            point_to_point += 1
            continue
        kind = collective_of(one.coll)
        whole = one.coll_msg_size_bytes * (who.n_ranks if kind in SHARES else 1)
        contradicting += _contradicts(one, whole)
        key = (who.id, who.rank, kind, one.coll_sn)
        again += key in samples
        samples[key] = Sample(
            group=known.name,
            group_size=who.n_ranks,
            kind=kind,
            bytes=whole,
            seq=one.coll_sn,
            rank=who.rank,
            time_us=one.coll_exec_time_us,
        )
    said = [*problems, *(f"{count} records {why}; they are left out" for why, count in odd.items())]
    if contradicting:
        said.append(
            f"{contradicting} records state a bandwidth that is not their size over their time; the time is used"
        )
    if again:
        said.append(f"{again} records repeat the number of an earlier one of their rank; the last is used")
    ragged = _ragged(samples.values())
    if ragged:
        said.append(f"{ragged} collectives have other sizes on some ranks; their skew is not known")
    said += _absent(communicators.values())
    return Inspected(
        communicators=tuple(communicators.values()),
        samples=tuple(samples.values()),
        point_to_point=point_to_point,
        said=tuple(said),
    )


def _contradicts(one: _Collective, whole: int) -> bool:
    if not one.coll_algobw_gbs or one.coll_algobw_gbs <= 0:
        return False
    took = whole / 1e3 / one.coll_algobw_gbs
    return abs(took - one.coll_exec_time_us) > max(1.0, APART * one.coll_exec_time_us)


def _ragged(samples: Iterable[Sample]) -> int:
    sizes: dict[tuple[str, str, int], set[int | None]] = {}
    for s in samples:
        sizes.setdefault((s.group, s.kind, s.seq), set()).add(s.bytes)
    return sum(len(found) > 1 for found in sizes.values())


def _absent(communicators: Iterable[Communicator]) -> Iterator[str]:
    for one in communicators:
        absent = one.ranks - len(one.hosts)
        if absent:
            yield (
                f"INCOMPLETE: communicator {one.name}: {absent} of {one.ranks} ranks wrote no record here; what is "
                "only known of some ranks includes waiting"
            )
