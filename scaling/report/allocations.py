"""The allocations that a comparison rests on, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Allocation, Comparison, Measured
from scaling.plain import plain
from scaling.report.text import count, ranks
from scaling.units import hostlist

KEY = "cluster.allocations"


def allocations_answer(comparison: Comparison, names: tuple[str, str]) -> str:
    """What the answer of a comparison rests on, as a sentence; empty where nodes do not come into it."""
    found = comparison.allocations
    if found is None:
        return ""
    many = (len(found.base), len(found.other))
    said = _each(many, names)
    if min(many) < 2:
        return f"This is {said}; nodes of one partition may differ: {KEY}=3 measures how much."
    decided = [point for point in comparison.points if point.allocations is not None]
    if not decided:
        return f"The intervals contain how far nodes differ: {said}."
    point = max(decided, key=lambda p: p.world_size)
    assert point.allocations is not None
    rates = (point.allocations.base, point.allocations.other)
    first, second = (_percent(_apart(side)) for side in rates)
    return (
        f"The interval contains how far nodes differ: {said}, which are up to {first} % apart with {names[0]} and "
        f"{second} % with {names[1]}."
    )


def allocation_lines(comparison: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """The nodes of each side, and how far they are apart at each world size."""
    found = comparison.allocations
    if found is None:
        return
    for name, side in zip(names, (found.base, found.other), strict=True):
        yield f"{name}: {count(len(side), 'allocation')}: {'; '.join(map(_nodes, side))}"
    for point in comparison.points:
        if point.allocations is None:
            continue
        both = zip(
            names, (found.base, found.other), (point.allocations.base, point.allocations.other), strict=True
        )
        for name, side, rates in both:
            slowest = _slowest(side, rates)
            yield f"{ranks(point.world_size)}: {name}: up to {_percent(_apart(rates))} % apart, slowest {slowest}"


def _each(many: tuple[int, int], names: tuple[str, str]) -> str:
    """`one allocation of each`, `3 allocations of each`, `1 allocation of a and 3 of b`."""
    if many[0] == many[1]:
        return f"{'one allocation' if many[0] == 1 else count(many[0], 'allocation')} of each"
    return f"{count(many[0], 'allocation')} of {names[0]} and {many[1]} of {names[1]}"


def _apart(rates: Sequence[Measured | None]) -> float:
    """The fastest over the slowest, minus 1."""
    known = [rate.value for rate in rates if rate is not None]
    return max(known) / min(known) - 1


def _percent(share: float) -> str:
    return f"{share * 100:.2g}"


def _slowest(side: Sequence[Allocation], rates: Sequence[Measured | None]) -> str:
    known = [(rate.value, one) for rate, one in zip(rates, side, strict=True) if rate is not None]
    return _nodes(min(known, key=lambda pair: pair[0])[1])


def _nodes(one: Allocation) -> str:
    return plain(hostlist(name.partition(".")[0] for name in one.nodes))
