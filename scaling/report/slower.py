"""Ranks that together do less than one of them alone, said outright."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Measured
from scaling.report.text import count, quantity, value_of

NAMED = 3
"""Rows that a sentence names; of more it gives the number."""

Row = tuple[int, str, Measured | None]
"""World size, what the row is called (empty: it is the only one), samples a second over those of one rank."""


def slower_lines(rows: Sequence[Row]) -> Iterator[str]:
    """`2 ranks are slower than 1 with batch=4 (0.62 ±0.03 times)`, for each world size where that is sure."""
    for n in sorted({size for size, _, _ in rows if size > 1}):
        here = [(name, speedup) for size, name, speedup in rows if size == n and speedup is not None]
        found = [(name, speedup) for name, speedup in here if speedup.surely_below(1.0)]
        if not found:
            continue
        said = f"{n} ranks are slower than 1"
        if len(here) == len(found) > 1:
            ends = [value_of(f(found, key=lambda one: one[1].value)[1]) for f in (min, max)]
            yield f"{said} in every row: {' to '.join(dict.fromkeys(ends))} times its samples a second"
        elif len(found) == 1:
            name, speedup = found[0]
            yield f"{said}{f' with {name}' if name else ''}: {quantity(speedup)} times its samples a second"
        else:
            each = [f"{name} ({quantity(speedup)} times its samples a second)" for name, speedup in found]
            yield f"{said} with {listed(each)}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; of more than NAMED the first ones and how many others."""
    shown = list(names[:NAMED])
    if len(names) > NAMED:
        shown.append(count(len(names) - NAMED, "other"))
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
