"""Communication by kind of collective and process group: all-gather, reduce-scatter and all-reduce of sharded training.

    busy = |union of the collectives' spans|    exposed = |busy without compute|    hidden = busy - exposed

Two kinds at once both count: they share the step, so the kinds need not add up to the exposed communication.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaling.traces.profiler.columns import Sent
from scaling.traces.profiler.spans import Ints, Spans, merged, minus


@dataclass(frozen=True, slots=True, kw_only=True)
class KindColumns:
    """One kind in one group on one rank; a number a window."""

    group_size: int | None
    calls: Ints
    busy: Ints
    exposed: Ints
    bytes: Ints | None


Kinds = dict[tuple[str, str], KindColumns]
"""By collective and process group."""


def by_kind(begin: Ints, end: Ints, sent: Sequence[Sent], unit: Ints, compute: Spans, borders: Ints) -> Kinds:
    """Split one rank's communication; columns of one length, an entry an event. Equal `unit`: one collective."""
    once = np.zeros(len(unit), dtype=bool)
    once[np.unique(unit, return_index=True)[1]] = True
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, one in enumerate(sent):
        rows[one.collective, one.group].append(row)
    found = {}
    windows = len(borders) - 1
    for key, of in rows.items():
        spans = merged(begin[of], end[of])
        step = np.searchsorted(borders, begin[of], side="right") - 1
        inside = (step >= 0) & (step < windows) & once[of]
        sizes = [_bytes(sent[row]) for row in of]
        found[key] = KindColumns(
            group_size=next((sent[row].group_size for row in of if sent[row].group_size), None),
            calls=np.bincount(step[inside], minlength=windows),
            busy=spans.within(borders),
            exposed=minus(spans, compute).within(borders),
            bytes=None
            if None in sizes
            else np.bincount(step[inside], np.array(sizes, dtype=float)[inside], windows).astype(np.int64),
        )
    return found


def _bytes(sent: Sent) -> int | None:
    """nccl-tests' size: the output of an all-gather holds all ranks' parts, also where the trace has its input only."""
    if sent.bytes is None or not (sent.inputs_only and sent.collective == "all_gather"):
        return sent.bytes
    return sent.bytes * sent.group_size if sent.group_size else None
