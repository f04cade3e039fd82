"""Compare two records of the same steps: where they first differ, and by how much."""

from __future__ import annotations

import math

from scaling.records.checkup import Layer, PrecisionRecord


def parts_at(record: PrecisionRecord, other: PrecisionRecord) -> str:
    """The first layer that differs, and by how much; empty if all are equal."""
    for kind, mine, theirs in (
        ("", record.layers, other.layers),
        ("gradient of ", tuple(reversed(record.gradients)), tuple(reversed(other.gradients))),
    ):
        for a, b in zip(mine, theirs, strict=False):
            if a.name != b.name or a.digest != b.digest:
                return f"{kind}{a.name} ({_text(a, b)})"
    if [s.digest for s in record.steps] == [s.digest for s in other.steps]:
        return ""
    index = next(
        i for i, (a, b) in enumerate(zip(record.steps, other.steps, strict=False)) if a.digest != b.digest
    )
    return f"step {index + 1}"


def _text(a: Layer, b: Layer) -> str:
    found = apart(a, b)
    return f"{found:.1e} apart" if math.isfinite(found) else "not comparable"


def furthest(record: PrecisionRecord, other: PrecisionRecord) -> float:
    """The largest distance between two layers."""
    both = zip(record.layers, other.layers, strict=False)
    return max((apart(a, b) for a, b in both if a.digest != b.digest), default=0.0)


def apart(a: Layer, b: Layer) -> float:
    """|a - b| / |b| over the kept elements; infinite if only one is finite, or if the shapes differ."""
    if len(a.samples) != len(b.samples):
        return math.inf
    pairs = list(zip(a.samples, b.samples, strict=True))
    if any((x is None) != (y is None) for x, y in pairs):
        return math.inf
    finite = [(x, y) for x, y in pairs if x is not None and y is not None]
    norm = math.sqrt(sum(y * y for _, y in finite))
    distance = math.sqrt(sum((x - y) ** 2 for x, y in finite))
    return distance / norm if norm else distance
