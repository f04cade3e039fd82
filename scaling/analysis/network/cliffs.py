"""Find the sizes at which a collective's time does what bytes do not explain. Pure.

A larger message that takes less time means that the smaller ones go a slower way: the library changes its algorithm or
protocol too late (`falls`). A time that grows by more than twice what the bytes grow by is a path that breaks down
(`jumps`). A change of protocol does not explain it: NCCL's LL, the most expensive one, moves twice the bytes. Where
both alternate over a range, the time is not a function of the size there (`unsteady`): something else changed while it
was measured.

Messages up to SMALL_BYTES are left out: their time is latency, whatever their size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from scaling.analysis.results import Cliff, Fabric, FabricLevel
from scaling.settings.run import Spec
from scaling.units import format_bytes

SMALL_BYTES = 2**12
FALL = 0.97
"""A time above this share of a smaller message's is no fall."""
PROTOCOL = 2.0
"""How many times as much as its bytes the time may grow by."""
DENSE = 1.25
"""Where sizes are closer together than this factor, a few of them count as one."""
TOGETHER = 3
ALTERNATING = 4
"""So many falls and jumps in a row are one unsteady range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What one size took: the mean, and the range in which it surely lies. Any unit."""

    bytes: int
    low: float
    time: float
    high: float


def cliffs(points: Sequence[Timed], collective: str = "all_reduce") -> tuple[Cliff, ...]:
    """Every cliff between two sizes of a curve, `points` in order of size."""
    large = _thinned([p for p in points if p.bytes >= SMALL_BYTES])
    candidates: list[Cliff] = []
    for k, before in enumerate(large):
        # In a dense sweep the change may lie inside one of the groups: look at the one behind it too.
        for after in large[k + 1 : k + 3] if _dense(points) else large[k + 1 : k + 2]:
            kind = _kind(before, after)
            if kind:
                candidates.append(
                    Cliff(
                        collective=collective,
                        kind=kind,
                        from_bytes=before.bytes,
                        to_bytes=after.bytes,
                        factor=after.time / before.time,
                    )
                )
                break
    return _joined(_once(candidates), large, collective)


def of_level(level: FabricLevel) -> tuple[Cliff, ...]:
    """Those of a size sweep, from times with intervals."""
    names = dict.fromkeys(point.collective for point in level.curve)
    return tuple(
        cliff
        for name in names
        for cliff in cliffs(
            [
                Timed(bytes=p.bytes, low=p.time_us.least, time=p.time_us.value, high=p.time_us.most)
                for p in level.curve
                if p.collective == name and p.time_us.interval is not None
            ],
            name,
        )
    )


def warnings(fabric: Fabric, spec: Spec) -> tuple[str, ...]:
    """A line for each cliff, with what to try."""
    return tuple(
        f"at {level.world_size} ranks {sentence(cliff)}: {_advice(cliff, spec)}"
        for level in fabric.levels
        for cliff in level.cliffs
    )


def sentence(cliff: Cliff) -> str:
    """A cliff in words."""
    low, high = format_bytes(cliff.from_bytes), format_bytes(cliff.to_bytes)
    name = cliff.collective.replace("_", "-")
    if cliff.kind == "falls":
        return f"{name} of {low} takes {1 / cliff.factor:.2g} times as long as one of {high}"
    if cliff.kind == "jumps":
        more = cliff.to_bytes / cliff.from_bytes
        longer = f"takes {cliff.factor:.2g} times as long as one of {low}"
        return f"{name} of {high} {longer}, for {more:.2g} times the bytes"
    return (
        f"{name} takes now one, now another time from {low} to {high}, {cliff.factor:.2g} times apart or more"
    )


def _advice(cliff: Cliff, spec: Spec) -> str:
    choose = (
        ""
        if spec.topology.backend == "gloo"
        else "; NCCL_ALGO and NCCL_PROTO (+env.NCCL_PROTO=...) choose the way"
    )
    buckets = cliff.collective == "all_reduce" and spec.parallel.name == "ddp"
    if cliff.kind == "falls":
        cap = f" (ddp.bucket_cap_mb={cliff.to_bytes / 2**20:.3g} or more)" if buckets else ""
        return f"make messages larger than that{cap}{choose}"
    if cliff.kind == "jumps":
        cap = f" (ddp.bucket_cap_mb={cliff.from_bytes / 2**20:.3g} or less)" if buckets else ""
        return f"keep messages below that{cap}{choose}"
    return "measure again on a machine without other traffic before these sizes are relied on"


def _kind(before: Timed, after: Timed) -> str | None:
    grown = after.bytes / before.bytes
    if after.high < before.low and after.time < FALL * before.time:
        return "falls"
    if after.low > grown * before.high and after.time > PROTOCOL * grown * before.time:
        return "jumps"
    return None


def _dense(points: Sequence[Timed]) -> bool:
    ratios = [b.bytes / a.bytes for a, b in pairwise(points) if a.bytes >= SMALL_BYTES]
    return bool(ratios) and median(ratios) < DENSE


def _thinned(points: Sequence[Timed]) -> list[Timed]:
    """Groups of neighbouring sizes as one, where there are very many."""
    if not _dense(points):
        return list(points)
    groups = [points[k : k + TOGETHER] for k in range(0, len(points) - TOGETHER + 1, TOGETHER)]
    return [
        Timed(
            bytes=group[TOGETHER // 2].bytes,
            low=min(p.low for p in group),
            time=median(p.time for p in group),
            high=max(p.high for p in group),
        )
        for group in groups
    ]


def _once(candidates: Sequence[Cliff]) -> list[Cliff]:
    """Falls that follow each other are one, and a change that was seen from two groups counts once."""
    kept: list[Cliff] = []
    for cliff in candidates:
        last = kept[-1] if kept else None
        if last is not None and last.kind == cliff.kind and cliff.from_bytes <= last.to_bytes:
            if cliff.kind == "falls" and cliff.from_bytes == last.to_bytes:
                factor = last.factor * cliff.factor
            else:
                factor = max((last.factor, cliff.factor), key=lambda f: max(f, 1 / f))
            kept[-1] = replace(cliff, from_bytes=last.from_bytes, factor=factor)
        else:
            kept.append(cliff)
    return kept


def _joined(distinct: list[Cliff], points: Sequence[Timed], collective: str) -> tuple[Cliff, ...]:
    """Alternating falls and jumps as one unsteady range."""
    kinds = [cliff.kind for cliff in distinct]
    if len(distinct) < ALTERNATING or len(set(kinds)) == 1:
        return tuple(distinct)
    low, high = distinct[0].from_bytes, distinct[-1].to_bytes
    inside = [p for p in points if low <= p.bytes <= high]
    # A larger message takes no less time, and no longer than by its bytes: how far apart two ways are at least.
    factor = max(
        max(after.time / before.time * before.bytes / after.bytes, before.time / after.time)
        for before, after in pairwise(inside)
    )
    return (Cliff(collective=collective, kind="unsteady", from_bytes=low, to_bytes=high, factor=factor),)
