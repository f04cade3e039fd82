"""Records of NCCL Inspector: bandwidth by size and the slow rank, as lines for a person and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scaling.analysis.network.curve import Points
from scaling.errors import ScalingError
from scaling.reading import RefusedError, read_text
from scaling.records import codec
from scaling.traces.machines.nccl_tests import parse_log
from scaling.traces.recorders.by_size import SizeRow, rows
from scaling.traces.recorders.inspector import Communicator, read_inspector
from scaling.units import format_bytes

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
            "communicators": [codec.encode(c) for c in found.communicators],
            "collectives": [
                {**codec.encode(r), "curve_share": None if curve is None else curve.share(r)} for r in timed
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
