"""Bandwidth and skew of collectives by communicator, kind and size, from each rank's duration of each of them.

Every rank's duration ends when the collective ends and begins when the rank joins, so it holds the wait for the ranks
that join later. With t_r the duration on rank r of one collective on n ranks:

    transfer = min over ranks of t_r        the last rank to join waits for nobody
    skew     = mean over ranks of t_r - transfer
    algbw    = bytes / transfer,  busbw = algbw x factor(n)      nccl-tests, doc/PERFORMANCE.md

The rank with the shortest duration joined last. Where not all ranks are known, the transfer is an upper bound.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from scaling.analysis.results.measured import Measured
from scaling.traces.profiler.table import measured
from scaling.traces.profiler.traffic import FACTORS

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
    """Of these, those that every rank of the communicator timed."""
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
