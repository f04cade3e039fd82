"""What a recorder's files come to, as lines for a person and as JSON; and the table that all recorders share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from scaling.traces.recorders.by_size import SizeRow
from scaling.units import format_bytes

GROUP_MAX = 40
ROWS_SHOWN = 24
RANKS_SHOWN = 64
"""More are in the JSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a command prints. `complete`: every rank and file is there and whole."""

    lines: tuple[str, ...]
    document: dict[str, Any]
    complete: bool


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
