"""The flight recorder's dumps of one job: who waits for whom, as lines for a person and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaling.errors import ScalingError
from scaling.reading import RefusedError
from scaling.records import codec
from scaling.traces.profiler.jobs import listed
from scaling.traces.profiler.signs import collective_of
from scaling.traces.recorders.by_size import Sample, rows
from scaling.traces.recorders.flight import Dump, Entry, read_dump
from scaling.traces.recorders.recorded import RANKS_SHOWN, Recorded, more, table
from scaling.traces.recorders.standing import Fault, Stand, Standing, compare

_WHAT = {
    "missing": "has not issued it",
    "skipped": "left it out and went on",
    "size": "issued another size",
    "dtype": "issued another type",
    "order": "issued another collective",
    "late": "came late",
}


def flight_recorder(paths: Sequence[Path]) -> Recorded:
    """The dumps of one job together. ScalingError where none can be read."""
    dumps, said = _dumps(paths)
    standing = compare(dumps)
    lost = [s.rank for s in standing.stands if s.lost]
    if lost:
        said.append(
            f"rank {listed(lost)}: the ring has overwritten its first collectives; only the rest is compared"
        )
    if standing.missing_ranks:
        said.append(
            f"INCOMPLETE: no dump of rank {listed(standing.missing_ranks)}; what only they did is not known "
            "(a rank that ended, or hangs outside of a collective, leaves none)"
        )
    if len(dumps) == 1:
        said.append("one rank's dump: nothing can be compared; give those of all ranks")
    timed = rows(_samples(dumps))
    lines = [
        *(f"# fault   {_fault_line(f)}" for f in standing.faults),
        *_no_fault(standing, said, dumps),
        *(f"# rank    {_stand_line(s)}" for s in standing.stands[:RANKS_SHOWN]),
        *more(len(standing.stands) - RANKS_SHOWN, "ranks"),
        *(table(timed) if timed else ["# timing  none: TORCH_NCCL_ENABLE_TIMING=1 was not set"]),
        *(f"# note    {line}" for line in said),
    ]
    return Recorded(
        lines=tuple(lines),
        document={
            "kind": "flight_recorder",
            "ranks": sorted(dumps),
            "missing_ranks": list(standing.missing_ranks),
            "faults": [codec.encode(f) for f in standing.faults],
            "stands": [_stand(s) for s in standing.stands],
            "collectives": [codec.encode(r) for r in timed],
            "warnings": said,
        },
        complete=not any(line.startswith("INCOMPLETE") for line in said),
    )


def _no_fault(standing: Standing, said: Sequence[str], dumps: Mapping[int, Dump]) -> Iterator[str]:
    """What is known where no fault was found: only of ranks with a dump, and of collectives that two of them hold."""
    if standing.faults or len(dumps) < 2:
        return
    if not standing.compared:
        yield "# fault   not known: no collective is in the dumps of two ranks"
    elif any(line.startswith("INCOMPLETE") for line in said):
        seen = listed(sorted(dumps))
        yield f"# fault   none among rank {seen}, which issued the same collectives; others are not known"
    else:
        yield "# fault   none: all ranks issued the same collectives"


def _dumps(paths: Sequence[Path]) -> tuple[dict[int, Dump], list[str]]:
    found: dict[int, Dump] = {}
    said: list[str] = []
    nameless: list[Dump] = []
    for path in paths:
        try:
            dump = read_dump(path)
        except (OSError, RefusedError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            said.append(f"INCOMPLETE: {path}: cannot be used ({why})")
            continue
        if dump.odd:
            said.append(f"{path}: {dump.odd} entries cannot be read and are left out")
        if dump.irregular:
            said.append(
                f"{path}: its counters jump at {dump.irregular} places: entries are missing or damaged, so what is "
                "said of this rank is doubtful"
            )
        if dump.rank is None:
            nameless.append(dump)
        elif dump.rank in found:
            said.append(f"{path}: rank {dump.rank} has another dump, {found[dump.rank].path}, which is used")
        else:
            found[dump.rank] = dump
    free = (r for r in range(len(paths)) if r not in found)
    for dump, rank in zip(nameless, list(free), strict=False):
        found[rank] = dump
        said.append(f"{dump.path}: its name gives no rank; it is used as rank {rank}")
    if not found:
        raise ScalingError(f"none of {len(paths)} files can be used: " + "; ".join(said[:3]))
    return found, said


def _samples(dumps: Mapping[int, Dump]) -> Iterator[Sample]:
    groups: dict[str, set[tuple[str, tuple[int, ...] | None]]] = defaultdict(set)
    for dump in dumps.values():
        for e in dump.entries:
            groups[e.described or e.group].add((e.group, dump.members.get(e.group)))
    for rank, dump in dumps.items():
        for e in dump.entries:
            if e.duration_ms and not e.p2p:
                members = dump.members.get(e.group)
                name = e.described or e.group
                if len(groups[name]) > 1:  # all groups along one axis of a mesh have one description
                    name += f" ({e.group}" + (f", rank {listed(members)})" if members else ")")
                yield Sample(
                    group=name,
                    group_size=len(members) if members else None,
                    kind=collective_of(e.kind),
                    bytes=e.bytes,
                    seq=e.seq,
                    rank=rank,
                    time_us=e.duration_ms * 1e3,
                )


def _fault_line(fault: Fault) -> str:
    who = f"rank {listed(fault.ranks)}"
    begin = f"{who} {_WHAT[fault.what]}: #{fault.seq} of {fault.group}, {fault.collective}"
    if fault.what == "late" and fault.seconds is not None:
        begin += f", {fault.seconds:.3g} s after the first rank (by the hosts' clocks)"
    if fault.instead is not None:
        begin += f"; it issued {fault.instead} under that number"
    if fault.what != "late":
        begin += f"; rank {listed(fault.others)} did"
    if fault.what == "missing" and fault.seconds is not None and fault.seconds >= 1:
        begin += f", {fault.seconds:.3g} s before the last record of any rank"
    return begin + (f"; {fault.line}" if fault.line else "")


def _stand_line(stand: Stand) -> str:
    if stand.last is None:
        return f"{stand.rank}: has issued no collective"
    if stand.waiting_in is None:
        return f"{stand.rank}: is in none; its last is {_place(stand.last)}"
    limit = stand.waiting_in.timeout_ms
    until = "" if not limit else f", which gives up after {limit / 1e3:.4g} s"
    return f"{stand.rank}: is in {_place(stand.waiting_in)}{until}"


def _place(entry: Entry) -> str:
    where = entry.described or entry.group
    return f"#{entry.seq}{f' of {where}' if where else ''}, {entry.what}{f' ({entry.line})' if entry.line else ''}"


def _stand(stand: Stand) -> dict[str, Any]:
    def place(entry: Entry | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        return {
            "group": entry.described or entry.group,
            "seq": entry.seq,
            "collective": entry.what,
            "created_ns": entry.created_ns,
            "line": entry.line or None,
        }

    return {
        "rank": stand.rank,
        "issued": stand.issued,
        "overwritten": stand.lost,
        "waiting_in": place(stand.waiting_in),
        "last": place(stand.last),
    }
