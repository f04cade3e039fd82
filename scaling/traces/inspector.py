"""Records of NCCL Inspector (a profiler plugin of NCCL and RCCL): a JSON object for each collective that ended.

Fields and units: plugins/profiler/inspector of NCCL, README.md and inspector_json.cc. The size of ReduceScatter and
AllGather is one rank's share. A duration has whole microseconds and includes the wait for late ranks.

Records of NCCL Inspector: bandwidth by size and the slow rank, as lines for a person and as JSON.

Bandwidth and skew of collectives by communicator, kind and size, from each rank's duration of each of them.

Every rank's duration ends when the collective ends and begins when the rank joins, so it holds the wait for the ranks
that join later. With t_r the duration on rank r of one collective on n ranks:

    transfer = min over ranks of t_r        the last rank to join waits for nobody
    skew     = mean over ranks of t_r - transfer
    algbw    = bytes / transfer,  busbw = algbw x factor(n)      nccl-tests, doc/PERFORMANCE.md

The rank with the shortest duration joined last. Where not all ranks are known, the transfer is an upper bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from scaling.analysis.network.curve import Points
from scaling.analysis.results.measured import Measured
from scaling.errors import InputError, ScalingError
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file, read_text
from scaling.records import files
from scaling.settings.plan import RANKS_MAX
from scaling.traces.machines.nccl_tests import parse_log
from scaling.traces.profiler.jobs import measured
from scaling.traces.profiler.signs import COUNT_MAX, collective_of
from scaling.traces.profiler.traffic import FACTORS
from scaling.units import format_bytes

MODEST = ("broadcast", "reduce", "gather", "scatter", "send_recv")
"""Their busbw is their algbw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The duration of one collective on one rank."""

    group: str
    group_size: int | None
    kind: str
    bytes: int | None
    """nccl-tests' size."""
    seq: int
    rank: int
    time_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """One collective of one size in one communicator."""

    group: str
    group_size: int | None
    collective: str
    bytes: int | None
    count: int
    """Collectives that at least one rank timed."""
    whole: int
    """Collectives that every rank of the communicator timed."""
    time_us: Measured
    """Mean over ranks."""
    transfer_us: Measured
    skew_us: Measured | None
    """None where no collective was timed by all ranks."""
    algbw_gbit_s: Measured | None
    busbw_gbit_s: Measured | None
    late_rank: int | None
    """The rank that joined last most often."""
    late_share: float | None


def rows(samples: Iterable[Sample]) -> tuple[SizeRow, ...]:
    """One row for each communicator, kind and size; those that take longest first."""
    found: dict[tuple[str, int | None, str, int | None], dict[int, dict[int, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for s in samples:
        found[s.group, s.group_size, s.kind, s.bytes][s.seq][s.rank] = s.time_us
    made = [_row(*key, by_seq) for key, by_seq in found.items()]
    return tuple(sorted(made, key=lambda r: -r.time_us.value * r.count))


def _row(
    group: str, size: int | None, kind: str, nbytes: int | None, by_seq: dict[int, dict[int, float]]
) -> SizeRow:
    whole = [seq for seq, times in by_seq.items() if size is not None and len(times) == size]
    # Where some were timed by all ranks, the others would only blur the transfer.
    used = whole or list(by_seq)
    time = measured(float(np.mean(list(by_seq[seq].values()))) for seq in used)
    transfer = measured(min(by_seq[seq].values()) for seq in used)
    assert time is not None
    assert transfer is not None
    skews = [float(np.mean(list(by_seq[seq].values()))) - min(by_seq[seq].values()) for seq in whole]
    apart = [
        seq for seq in whole if len(set(by_seq[seq].values())) > 1
    ]  # of equal durations none shows who was last
    last = Counter(min(by_seq[seq], key=by_seq[seq].__getitem__) for seq in apart)
    late, often = last.most_common(1)[0] if last and (size or 0) > 1 else (None, 0)
    factor = FACTORS[kind](size) if kind in FACTORS and size is not None and size > 1 else None
    factor = 1.0 if kind in MODEST else factor
    rate = None if nbytes is None or transfer.value <= 0 else nbytes * 8 / transfer / 1e3
    return SizeRow(
        group=group,
        group_size=size,
        collective=kind,
        bytes=nbytes,
        count=len(by_seq),
        whole=len(whole),
        time_us=time,
        transfer_us=transfer,
        skew_us=measured(skews),
        algbw_gbit_s=rate,
        busbw_gbit_s=None if rate is None or factor is None else factor * rate,
        late_rank=late,
        late_share=often / len(whole) if late is not None else None,
    )


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


GROUP_MAX = 40
ROWS_SHOWN = 24
"""More are in the JSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a command prints. `complete`: every rank and file is there and whole."""

    lines: tuple[str, ...]
    document: dict[str, Any]
    complete: bool


def inspector(paths: Sequence[Path], beside: Path | None) -> Recorded:
    """All records together; `beside`: a log of nccl-tests, the machine's own curve. InputError without a record."""
    found = read_inspector(paths)
    timed = rows(found.samples)
    curve = None if beside is None else _Curve(beside)
    said = list(found.said)
    if curve is not None and not any(curve.share(r) for r in timed):
        said.append(
            f"{beside}: has no table of the same collective and number of ranks that covers these sizes"
        )
    lines = [
        *(f"# communicator  {_communicator(c)}" for c in found.communicators[:ROWS_SHOWN]),
        *more(len(found.communicators) - ROWS_SHOWN, "communicators"),
        *table(timed, None if curve is None else curve.share),
        *_late_lines(timed, found.communicators),
        *(f"# note    {line}" for line in said),
    ]
    if found.point_to_point:
        lines.append(f"# note    {found.point_to_point} records of sends and receives are counted only")
    return Recorded(
        lines=tuple(lines),
        document={
            "kind": "nccl_inspector",
            "communicators": [files.encode(c) for c in found.communicators],
            "collectives": [
                {**files.encode(r), "curve_share": None if curve is None else curve.share(r)} for r in timed
            ],
            "point_to_point_records": found.point_to_point,
            "warnings": said,
        },
        complete=not any(line.startswith("INCOMPLETE") for line in said),
    )


def _communicator(one: Communicator) -> str:
    return f"{one.name}: {one.ranks} ranks on {one.nodes} {'node' if one.nodes == 1 else 'nodes'}"


def _late_lines(timed: Sequence[SizeRow], communicators: Sequence[Communicator]) -> Iterator[str]:
    """The rank of each communicator for which the others wait most."""
    for one in communicators:
        mine = [r for r in timed if r.group == one.name and r.whole and r.skew_us is not None]
        waited: dict[int, float] = {}
        for r in mine:
            if r.late_rank is not None and r.skew_us is not None:
                waited[r.late_rank] = waited.get(r.late_rank, 0.0) + r.skew_us.value * r.whole * (
                    r.late_share or 0
                )
        if not waited:
            continue
        rank = max(waited, key=waited.__getitem__)
        whole = sum(r.skew_us.value * r.whole for r in mine if r.skew_us is not None)
        if whole > 0:
            yield (
                f"# slow    {one.name}: rank {rank} on {one.hosts.get(rank, 'an unknown host')} joins last where the "
                f"others wait longest: {waited[rank] / whole:.0%} of {whole / 1e3:.4g} ms that a rank waits on average"
            )


class _Curve:
    """busbw over size of a log of nccl-tests."""

    def __init__(self, path: Path) -> None:
        try:
            text = read_text(path, strict=False)
        except (OSError, RefusedError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ScalingError(
                f"--beside {path}: cannot be read ({why}); a log of nccl-tests is expected"
            ) from error
        self._sections = parse_log(text, str(path))

    def share(self, row: SizeRow) -> float | None:
        """Its busbw as a share of the log's at that size, between the sizes of the log; None where it has none."""
        for section in self._sections:
            if (section.collective, section.world_size) != (row.collective, row.group_size):
                continue
            known = section.timed()
            if row.bytes and known and known[0].bytes <= row.bytes <= known[-1].bytes:
                times = np.array([[k.time for k in known]])
                there = float(Points(sizes=tuple(k.bytes for k in known), times=times).at(row.bytes)[0])
                return there / row.transfer_us.value
        return None


def table(
    timed: Sequence[SizeRow], share_of: Callable[[SizeRow], float | None] | None = None
) -> Iterator[str]:
    """Rows by size, the longest first; `share_of`: busbw as a share of the machine's own curve."""
    beside = "  of curve" if share_of is not None else ""
    wide = min(GROUP_MAX, max([18, *(len(r.group) for r in timed[:ROWS_SHOWN])]))
    yield (
        f"#{'collective':>15} {'group':>{wide}} {'ranks':>6} {'size':>9} {'n':>7} {'time us':>9} {'transfer':>9} "
        f"{'skew us':>9} {'algbw Gbit/s':>13} {'busbw Gbit/s':>13}  last to join{beside}"
    )
    for r in timed[:ROWS_SHOWN]:
        cells = [
            f" {r.collective:>15} {r.group[:wide]:>{wide}} {'-' if r.group_size is None else r.group_size:>6}",
            f"{'-' if r.bytes is None else format_bytes(r.bytes):>9} {r.count:>7}",
            *(f"{'-' if v is None else f'{v.value:.4g}':>9}" for v in (r.time_us, r.transfer_us, r.skew_us)),
            *(f"{'-' if v is None else f'{v.value:.4g}':>13}" for v in (r.algbw_gbit_s, r.busbw_gbit_s)),
            f" {'-' if r.late_rank is None else f'rank {r.late_rank} ({r.late_share or 0:.0%})':>12}",
        ]
        share = None if share_of is None else share_of(r)
        yield " ".join(cells) + ("" if share is None else f"  {share:>8.0%}")
    yield from more(len(timed) - ROWS_SHOWN, "rows")


def more(count: int, what: str) -> Iterator[str]:
    """How many are not printed."""
    if count > 0:
        yield f"# and {count} more {what}; --json has all"
