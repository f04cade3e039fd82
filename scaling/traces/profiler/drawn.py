"""A typical step of each rank as spans, for the timelines of the report and of Perfetto."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from scaling.analysis.results import Span, Timeline
from scaling.traces.profiler.files import RankTrace
from scaling.traces.profiler.match import Matched, moving
from scaling.traces.profiler.spans import Spans, minus, union

RANKS_MAX = 16
"""Ranks drawn."""
SPANS_MAX = 400
"""Spans of a rank's lane; the shortest gaps are closed until no more are left."""


def timeline(ranks: Mapping[int, RankTrace], matched: Matched, world_size: int) -> Timeline:
    """The step whose length is nearest to the mean; each rank from its own begin, since clocks may differ."""
    lengths = [f.parts.columns["window"] for f in ranks.values()]
    steps = min(map(len, lengths))
    mean = np.mean([row[:steps] for row in lengths], axis=0)
    step = int(np.abs(mean - mean.mean()).argmin())
    spans: list[Span] = []
    for rank, file in list(ranks.items())[:RANKS_MAX]:
        spans += _rank(rank, file, matched, step)
    return Timeline(world_size=world_size, spans=tuple(spans))


def _rank(rank: int, file: RankTrace, matched: Matched, step: int) -> list[Span]:
    parts, found = file.parts, file.parts.collectives
    low, high = int(parts.borders[step]), int(parts.borders[step + 1])
    window = Spans(np.array([low]), np.array([high]))
    outside = Spans(np.array([-(1 << 62), high]), np.array([low, 1 << 62]))
    moves = moving(found, matched.released[rank])
    compute, exposed = minus(parts.compute, outside), minus(parts.exposed, outside)
    lanes = {
        "compute": compute,
        "exposed_skew": minus(exposed, moves),
        "exposed_transfer": minus(exposed, minus(exposed, moves)),
        "host": minus(window, union(compute, exposed)),
    }
    spans = [
        _span(rank, "compute", name, begin - low, end - low)
        for name, held in lanes.items()
        for begin, end in zip(*_coarse(held), strict=True)
    ]
    inside = np.flatnonzero((found.begin >= low) & (found.begin < high))[:SPANS_MAX]
    for k, row in enumerate(inside):
        sent = found.sent[row]
        spans.append(
            _span(
                rank,
                "link",
                f"{sent.collective} {k}",
                int(found.begin[row]) - low,
                int(found.end[row]) - low,
                sent.bytes,
            )
        )
    return spans


def _coarse(spans: Spans) -> tuple[list[int], list[int]]:
    """At most SPANS_MAX intervals: the shortest gaps between them are closed."""
    if len(spans) > SPANS_MAX:
        gaps = spans.begin[1:] - spans.end[:-1]
        kept = np.sort(np.argsort(-gaps, kind="stable")[: SPANS_MAX - 1])
        begin = np.concatenate([spans.begin[:1], spans.begin[kept + 1]])
        end = np.concatenate([spans.end[kept], spans.end[-1:]])
        return begin.tolist(), end.tolist()
    return spans.begin.tolist(), spans.end.tolist()


def _span(rank: int, lane: str, name: str, begin: int, end: int, size: int | None = None) -> Span:
    return Span(
        rank=rank,
        lane=lane,
        name=name,
        begin_ms=round(begin / 1e6, 4),
        end_ms=round(end / 1e6, 4),
        bytes=size,
    )
