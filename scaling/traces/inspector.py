"""Records of NCCL Inspector (a profiler plugin of NCCL and RCCL): bandwidth by size, and the rank that joins last.

A record is a JSON object for each collective that ended on a rank. Fields and units: plugins/profiler/inspector of
NCCL, README.md and inspector_json.cc. The size of ReduceScatter and AllGather is one rank's share. A duration has whole
microseconds, ends when the collective ends and begins when the rank joins, so it holds the wait for the ranks that join
later. With t_r the duration on rank r of one collective on n ranks:

    transfer = min over ranks of t_r        the last rank to join waits for nobody
    skew     = mean over ranks of t_r - transfer
    algbw    = bytes / transfer,  busbw = algbw x factor(n)      nccl-tests, doc/PERFORMANCE.md

The rank with the shortest duration joined last. Where not all ranks are known, the transfer is an upper bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from scaling.analysis.network import links
from scaling.analysis.network.curve import Points
from scaling.analysis.results.measured import Measured
from scaling.errors import InputError, while_reading
from scaling.reading import LOG_BYTES_MAX, RefusedError, open_file, read_text
from scaling.records import files
from scaling.settings.plan import RANKS_MAX
from scaling.traces.kinds import Told
from scaling.traces.machines.nccl_table import LogTable
from scaling.traces.machines.nccl_tests import parse_log
from scaling.traces.profiler.jobs import mean
from scaling.traces.profiler.signs import COUNT_MAX, collective_of
from scaling.traces.profiler.traffic import rates
from scaling.units import count, format_bytes

OBJECT_BYTES_MAX = 1 << 20
"""One object; verbose ones with an event for each channel have some kilobytes."""
SHARES = ("reduce_scatter", "all_gather")
"""Collectives whose size is recorded as one rank's share."""
APART = 0.02
"""A stated bandwidth that differs by more than this, and by more than the clock's resolution, contradicts."""
TIME_US_MAX = 10**10
GROUP_MAX = 40
ROWS_SHOWN = 24
"""More are in the JSON document."""


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
    coll_algobw_gbs: float | None = None

    def contradicts(self, nbytes: int) -> bool:
        """Whether it states a bandwidth that is not its size over its time."""
        if not self.coll_algobw_gbs or self.coll_algobw_gbs <= 0:
            return False
        off_us = abs(nbytes / 1e3 / self.coll_algobw_gbs - self.coll_exec_time_us)
        return off_us > max(1.0, APART * self.coll_exec_time_us)


class _Record(msgspec.Struct):
    header: _Header
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    coll_perf: _Collective | None = None
    p2p_perf: dict[str, Any] | None = None


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
class SizeRow:
    """One collective of one size in one communicator; times are means over its instances."""

    group: str
    group_size: int
    collective: str
    bytes: int
    count: int
    """Collectives that at least one rank timed."""
    whole: int
    """Collectives that every rank of the communicator timed."""
    time_us: Measured
    transfer_us: Measured
    skew_us: Measured | None
    """None where no collective was timed by all ranks."""
    algbw_gbit_s: Measured | None
    busbw_gbit_s: Measured | None
    late_rank: int | None
    """The rank that joined last most often."""
    late_share: float | None
    curve_share: float | None
    """busbw as a share of the machine's own at that size; None where no log beside tells it."""


Times = dict[int, dict[int, float]]
"""Number of a collective -> rank -> its duration, us."""


class _Inspected:
    """All files together; `curve`: tables of a log of nccl-tests on the same machine."""

    def __init__(self, paths: Iterable[Path], curve: Sequence[LogTable]) -> None:
        self.curve = curve
        self.communicators: dict[str, Communicator] = {}
        self.sized: dict[tuple[str, str, int], Times] = defaultdict(lambda: defaultdict(dict))
        """Durations by communicator, collective and nccl-tests' size."""
        self.point_to_point = 0
        """Records of sends and receives, which are counted only."""
        records, left_out, problems = _read(paths)
        self.notes = [*problems, *self._add(records, left_out)]
        self.rows = sorted(map(self._row, self.sized), key=lambda r: -r.time_us.value * r.count)

    def _add(self, records: list[_Record], left_out: Counter[str]) -> Iterator[str]:
        """Sort the records by size; what is odd about them, in words."""
        world: dict[str, Counter[int]] = defaultdict(Counter)
        for record in records:
            world[record.header.id][record.header.n_ranks] += 1
        named = {record.header.id: record.header.comm_name for record in records}
        alike = Counter(named.values())  # all groups along one axis of a mesh may have one name
        by_number: dict[tuple[str, str, int], dict[int, tuple[int, float]]] = defaultdict(dict)
        contradicting = again = 0
        for record in records:
            who, timed = record.header, record.coll_perf
            if who.n_ranks != world[who.id].most_common(1)[0][0]:
                left_out["give their communicator another number of ranks than most"] += 1
                continue
            if who.id not in self.communicators:
                name = named[who.id] or who.id
                name = name if alike[name] <= 1 else f"{name} ({who.id})"
                self.communicators[who.id] = Communicator(
                    id=who.id, name=name, ranks=who.n_ranks, nodes=who.nnodes, hosts={}
                )
            process = f"{record.metadata.hostname} (process {record.metadata.pid})"
            self.communicators[who.id].hosts[who.rank] = process
            if timed is None:
                self.point_to_point += 1
                continue
            kind = collective_of(timed.coll)
            nbytes = timed.coll_msg_size_bytes * (who.n_ranks if kind in SHARES else 1)
            contradicting += timed.contradicts(nbytes)
            by_rank = by_number[who.id, kind, timed.coll_sn]
            again += who.rank in by_rank
            by_rank[who.rank] = nbytes, timed.coll_exec_time_us
        for (comm_id, kind, number), by_rank in by_number.items():
            for rank, (nbytes, us) in by_rank.items():
                self.sized[comm_id, kind, nbytes][number][rank] = us
        yield from (f"{count} records {why}; they are left out" for why, count in left_out.items())
        if contradicting:
            yield f"{contradicting} records state a bandwidth that is not their size over their time; the time is used"
        if again:
            yield f"{again} records repeat the number of an earlier one of their rank; the last is used"
        ragged = sum(len({size for size, _ in by_rank.values()}) > 1 for by_rank in by_number.values())
        if ragged:
            yield f"{ragged} collectives have other sizes on some ranks; their skew is not known"
        for comm in self.communicators.values():
            if len(comm.hosts) < comm.ranks:
                yield (
                    f"INCOMPLETE: communicator {comm.name}: {comm.ranks - len(comm.hosts)} of {comm.ranks} ranks wrote "
                    "no record here; what is only known of some ranks includes waiting"
                )

    def _row(self, key: tuple[str, str, int]) -> SizeRow:
        comm, kind, nbytes = self.communicators[key[0]], key[1], key[2]
        timed = list(self.sized[key].values())
        whole = [by_rank for by_rank in timed if len(by_rank) == comm.ranks]
        used = [np.array(list(by_rank.values())) for by_rank in whole or timed]  # of some, it holds waiting
        transfer = mean(float(us.min()) for us in used)
        # Equal durations do not show who was last.
        uneven = [by_rank for by_rank in whole if len(set(by_rank.values())) > 1]
        last = Counter(min(by_rank, key=by_rank.__getitem__) for by_rank in uneven)
        late, often = last.most_common(1)[0] if last and comm.ranks > 1 else (None, 0)
        algbw, busbw = rates(transfer, nbytes, comm.ranks, kind)
        return SizeRow(
            group=comm.name,
            group_size=comm.ranks,
            collective=kind,
            bytes=nbytes,
            count=len(timed),
            whole=len(whole),
            time_us=mean(float(us.mean()) for us in used),
            transfer_us=transfer,
            skew_us=mean(float(us.mean() - us.min()) for us in used) if whole else None,
            algbw_gbit_s=algbw,
            busbw_gbit_s=busbw,
            late_rank=late,
            late_share=None if late is None else often / len(whole),
            curve_share=self._of_curve(kind, comm, nbytes, transfer.value),
        )

    def _of_curve(self, kind: str, comm: Communicator, nbytes: int, us: float) -> float | None:
        """The log's time as a share of `us`, between the sizes of the log; None where it has no such table."""
        for table in self.curve:
            alike = (table.collective, table.world_size) == (kind, comm.ranks)
            timed = table.timed() if alike and table.hosts in (None, comm.nodes) else []
            if timed and timed[0].bytes <= nbytes <= timed[-1].bytes:
                times = np.array([[t.time for t in timed]])
                return float(Points(sizes=tuple(t.bytes for t in timed), times=times).at(nbytes)[0]) / us
        return None

    def slow(self) -> Iterator[str]:
        """The rank of each communicator for which the others wait most."""
        for comm in self.communicators.values():
            waited: dict[int, float] = defaultdict(float)
            whole_us = 0.0
            for r in self.rows:
                if r.group == comm.name and r.skew_us is not None:
                    whole_us += r.skew_us.value * r.whole
                    if r.late_rank is not None:
                        waited[r.late_rank] += r.skew_us.value * r.whole * (r.late_share or 0)
            if waited and whole_us > 0:
                rank = max(waited, key=waited.__getitem__)
                yield (
                    f"{comm.name}: rank {rank} on {comm.hosts.get(rank, 'an unknown host')} joins last where the "
                    f"others wait longest: {waited[rank] / whole_us:.0%} of {whole_us / 1e3:.4g} ms that a rank waits "
                    "on average"
                )

    def links(self) -> Iterator[str]:
        """The rows beside what others reach on the machine that the log names."""
        names = {device.name for table in self.curve for device in table.devices}
        nodes = {comm.name: comm.nodes for comm in self.communicators.values()}
        if len(names) == 1:
            points = [
                (r.collective, r.group_size, nodes[r.group], r.bytes, r.busbw_gbit_s.value / 8)
                for r in self.rows
                if r.whole and r.busbw_gbit_s is not None
            ]
            yield from links.beside_best(names.pop(), points)


def _read(paths: Iterable[Path]) -> tuple[list[_Record], Counter[str], list[str]]:
    """All records, how many are left out and why, and files without any. InputError where none has a record."""
    records: list[_Record] = []
    left_out: Counter[str] = Counter()
    problems = []
    for path in paths:
        before = len(records)
        try:
            with open_file(path, LOG_BYTES_MAX) as file:
                for text in _objects(file):
                    record = _decoded(text)
                    if isinstance(record, str):
                        left_out[record] += 1
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
    return records, left_out, problems


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


def _decoded(text: bytes) -> _Record | str:
    """A record whose numbers can be, or what is wrong with it."""
    try:
        record = _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "cannot be read"
    who, timed = record.header, record.coll_perf
    if not (0 <= who.rank < who.n_ranks <= RANKS_MAX):
        return "name a rank outside of their communicator"
    if timed is None:
        return record if record.p2p_perf is not None else "hold no collective"
    if not (0 <= timed.coll_sn < COUNT_MAX and 0 < timed.coll_msg_size_bytes * who.n_ranks < COUNT_MAX):
        return "have a number or size that cannot be"
    if not 0 < timed.coll_exec_time_us < TIME_US_MAX:
        return "have no duration of a microsecond or more"
    return record


def inspector(paths: Sequence[Path], beside: Path | None) -> Told:
    """All records together; `beside`: a log of nccl-tests, the machine's own curve. InputError without a record."""
    curve: tuple[LogTable, ...] = ()
    if beside is not None:
        with while_reading(f"--beside {beside}", "a log of nccl-tests is expected"):
            curve = parse_log(read_text(beside, strict=False), str(beside))
    seen = _Inspected(paths, curve)
    if beside is not None and not any(r.curve_share for r in seen.rows):
        seen.notes.append(
            f"{beside}: has no table of the same collective and number of ranks that covers these sizes"
        )
    comms = list(seen.communicators.values())
    reached = list(seen.links())
    lines = [
        *(
            f"# communicator  {c.name}: {c.ranks} ranks on {count(c.nodes, 'node')}"
            for c in comms[:ROWS_SHOWN]
        ),
        *_more(len(comms) - ROWS_SHOWN, "communicators"),
        *_table(seen.rows, beside=beside is not None),
        *(f"# links   {line}" for line in reached),
        *(f"# slow    {line}" for line in seen.slow()),
        *(f"# note    {line}" for line in seen.notes),
    ]
    if seen.point_to_point:
        lines.append(f"# note    {seen.point_to_point} records of sends and receives are counted only")
    return Told(
        lines=tuple(lines),
        document={
            "kind": "nccl_inspector",
            "communicators": files.encode(comms),
            "collectives": files.encode(seen.rows),
            "links": reached,
            "point_to_point_records": seen.point_to_point,
            "warnings": seen.notes,
        },
        complete=not any(line.startswith("INCOMPLETE") for line in seen.notes),
    )


def _table(rows: Sequence[SizeRow], *, beside: bool) -> Iterator[str]:
    """Rows by size, the longest first; `beside`: with busbw as a share of the machine's own curve."""
    wide = min(GROUP_MAX, max([18, *(len(r.group) for r in rows[:ROWS_SHOWN])]))
    yield (
        f"#{'collective':>15} {'group':>{wide}} {'ranks':>6} {'size':>9} {'n':>7} {'time us':>9} {'transfer':>9} "
        f"{'skew us':>9} {'algbw Gbit/s':>13} {'busbw Gbit/s':>13}  last to join{'  of curve' * beside}"
    )
    for r in rows[:ROWS_SHOWN]:
        cells = [
            f" {r.collective:>15} {r.group[:wide]:>{wide}} {r.group_size:>6}",
            f"{format_bytes(r.bytes):>9} {r.count:>7}",
            *(f"{'-' if v is None else f'{v.value:.4g}':>9}" for v in (r.time_us, r.transfer_us, r.skew_us)),
            *(f"{'-' if v is None else f'{v.value:.4g}':>13}" for v in (r.algbw_gbit_s, r.busbw_gbit_s)),
            f" {'-' if r.late_rank is None else f'rank {r.late_rank} ({r.late_share or 0:.0%})':>12}",
        ]
        yield " ".join(cells) + ("" if r.curve_share is None else f"  {r.curve_share:>8.0%}")
    yield from _more(len(rows) - ROWS_SHOWN, "rows")


def _more(count: int, what: str) -> Iterator[str]:
    """How many are not printed."""
    if count > 0:
        yield f"# and {count} more {what}; --json has all"
