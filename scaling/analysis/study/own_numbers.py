"""Numbers that someone measured by their own means: speedup, efficiency, and where the scaling breaks. Pure."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from scaling.errors import InputError

EXPECTED = (
    "two columns are expected, GPUs and their throughput, such as `gpus,samples_per_s`, `1,400`, `2,790`"
)
ROWS_MAX = 10_000
KEPT = 0.9
"""A step to more GPUs that keeps less of the throughput a GPU than this is where the scaling breaks."""
ABOVE = 1.05
"""More than so many times the ideal is no scaling: the numbers are not of the same training."""
_COUNTS = re.compile(r"gpu|rank|world|device|process|^n$|^np$", re.IGNORECASE)
_TIMES = re.compile(r"time|_ms$|\(ms\)|^ms$|_s$|seconds|\(s\)|hours|\(h\)|minutes|\(min\)", re.IGNORECASE)
_WHOLE = re.compile(r"epoch|total|elapsed|wall|run_?time|hours|\(h\)", re.IGNORECASE)
_HOSTS = re.compile(r"^(?:num_?|n_?)?(?:nodes|hosts)$", re.IGNORECASE)
_ON_EACH = re.compile(r"(?:per|/)[_ ]?(?:node|host)", re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[\d.' ]*\d,\d+(?:\s*[^\d\s].*)?")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:\s*[^\d\s].*)?")
_FIGURE = re.compile(
    r"(\d{1,15}(?:\.\d*)?(?:e[+-]?\d{1,3})?)\s*([kKM](?![a-zA-Z]))?\s*([^\d\s,.].{0,30})?", re.ASCII
)
_RATES = re.compile(r"/s|per_?s|throughput|samples|tokens|ima?ge?s|it/s|steps|seq", re.IGNORECASE)
_INVERSE = re.compile(
    r"(?<![a-z/])(?<!/ )(?<!per[ _])"
    r"(?:[mnuµ]?s|[mµu]?sec(?:ond)?s?|(?:milli|micro|nano)seconds?|min(?:ute)?s?|h(?:ou)?rs?|time)"
    r"\s*(?:/|[ _]?per[ _])",
    re.IGNORECASE,
)
"""`ms/step`, `s/it`, `time_per_step`: times whose `/s` or `per_s` is no rate."""
_RULE = re.compile(r":?-*:?")
_EACH = re.compile(r"(?:per|/)[_ ]?(?:gpu|rank|device)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNumber:
    """One world size: the mean of its rows."""

    world_size: int
    throughput: float
    """All GPUs together, in the unit of the file."""
    rows: int
    apart: float
    """Largest over smallest row, less 1; 0 for one row."""
    speedup: float
    """Against the smallest world size."""
    efficiency: float
    """Speedup over the ratio of GPUs."""
    kept: float | None
    """Throughput a GPU over that of the next smaller world size; None for the smallest."""


def read_numbers(text: str, where: str) -> tuple[tuple[OwnNumber, ...], tuple[str, ...]]:
    """The numbers in order of world size, and what was assumed. InputError where it is no such table."""
    lines = [
        words
        for words in _table(text, where)
        if any(words) and not words[0].startswith("#") and not all(map(_RULE.fullmatch, words))
    ]
    if not lines or len(lines) > ROWS_MAX:
        raise InputError(f"{where}: {len(lines)} rows; {EXPECTED}")
    names = [] if _number(lines[0][0]) is not None else lines[0]
    body = lines[1:] if names else lines
    count = next((k for k, name in enumerate(names) if _COUNTS.search(name) and not _EACH.search(name)), 0)
    hosts = next(
        (k for k, name in enumerate(names) if _HOSTS.search(name) and _ON_EACH.search(names[count])), None
    )
    kinds = (_RATES, _TIMES, _INVERSE)
    rates = [k for k, name in enumerate(names) if k != count and any(kind.search(name) for kind in kinds)]
    value = rates[0] if rates else 1 - min(count, 1)
    figures = [_FIGURE.fullmatch(words[value]) for words in body if value < len(words)]
    units = {figure[3] or "" for figure in figures if figure}
    if len(units) > 1:
        raise InputError(f"{where}: units {', '.join(sorted(units))} in one column; one unit is expected")
    name = (names[value] if value < len(names) else "") + "".join(f" ({unit})" for unit in units if unit)
    seconds = bool(_INVERSE.search(name) or (_TIMES.search(name) and not _RATES.search(name)))
    of_steps = re.search("step|iter|batch", name, re.IGNORECASE)
    whole_job = seconds and bool(_WHOLE.search(name)) and not of_steps
    totals: dict[int, list[float]] = {}
    for number, words in enumerate(body, 2 if names else 1):
        cells = [count, value] if hosts is None else [count, value, hosts]
        n, rate, times = (*(_number(words[k]) if k < len(words) else None for k in cells), 1.0)[:3]
        n = n and times and n * times
        surplus = names and any(words[len(names) :])  # a comma in a number is no second column
        if surplus or n is None or n != int(n) or not 1 <= n < 10**7 or rate is None or rate <= 0:
            raise InputError(f"{where}, row {number}: {' '.join(words)[:60]!r}; {EXPECTED}")
        whole = (1 if whole_job else n) / rate if seconds else rate * n if _EACH.search(name) else rate
        totals.setdefault(int(n), []).append(whole)
    if len(totals) < 2:
        raise InputError(
            f"{where}: {len(totals)} number of GPUs; two or more are needed for a speedup; {EXPECTED}"
        )
    assumed = []
    if whole_job:
        assumed.append(f"{name} is the time for the same data everywhere (strong scaling)")
    elif seconds:
        assumed.append(f"{name} is a step's time with the same batch a GPU everywhere (weak scaling)")
    elif _EACH.search(name):
        assumed.append(f"{name} is multiplied by the GPUs")
    return _derived(totals), tuple(assumed)


def concluded(numbers: Sequence[OwnNumber]) -> Iterator[str]:
    """Sentences: where it breaks, and why the numbers may not be what they seem."""
    first, last = numbers[0], numbers[-1]
    steps = list(pairwise(numbers))
    breaks = next((s for s in steps if (s[1].kept or 0) < KEPT), None)
    if breaks is None:
        yield f"no break: each step to more GPUs keeps {min(n.kept or 1 for n in numbers):.0%} or more a GPU"
    else:
        worst = min(steps, key=lambda s: s[1].kept or 0)
        for a, b in dict.fromkeys((breaks, worst)):
            times = b.world_size / a.world_size
            yield (
                f"breaks from {a.world_size} to {b.world_size} GPUs: {times:.3g} times the GPUs give "
                f"{b.throughput / a.throughput:.3g} times the throughput ({b.kept:.0%} a GPU is kept)"
            )
    odd = [n for n in numbers if n.efficiency > ABOVE]
    if odd:
        yield (
            f"{odd[0].world_size} GPUs are more than {odd[0].world_size / first.world_size:.3g} times as fast as "
            f"{first.world_size}: these are not the same training (batch a GPU, warm-up, memory)"
        )
    flat = max(n.throughput for n in numbers) < 1.15 * min(n.throughput for n in numbers)
    if flat and last.world_size >= 2 * first.world_size:
        yield "all throughputs are nearly equal: if they are per GPU, name the column so (samples_per_s_per_gpu)"
    if first.world_size > 1:
        yield f"nothing was measured on one GPU: the loss up to {first.world_size} GPUs is not in these numbers"
    if all(n.rows == 1 for n in numbers):
        yield "one number each: differences of a few percent may be noise; repeat a row to see how far it varies"
    else:
        yield f"rows of one world size differ by up to {max(n.apart for n in numbers):.1%}"


def to_measure(numbers: Sequence[OwnNumber]) -> tuple[int, ...]:
    """World sizes of the next measurement: both sides of the worst step, and the smallest."""
    a, b = min(pairwise(numbers), key=lambda s: s[1].kept or 0)
    return tuple(sorted({numbers[0].world_size, a.world_size, b.world_size}))


def _derived(totals: dict[int, list[float]]) -> tuple[OwnNumber, ...]:
    means = {n: fmean(values) for n, values in sorted(totals.items())}
    first, base = next(iter(means.items()))
    each = {n: rate / n for n, rate in means.items()}
    before = dict(zip(list(means)[1:], means, strict=False))
    return tuple(
        OwnNumber(
            world_size=n,
            throughput=rate,
            rows=len(totals[n]),
            apart=max(totals[n]) / min(totals[n]) - 1,
            speedup=rate / base,
            efficiency=rate / base / (n / first),
            kept=each[n] / each[before[n]] if n in before else None,
        )
        for n, rate in means.items()
    )


def _table(text: str, where: str) -> list[list[str]]:
    """Cells by row, with decimal points alone; the separator is the first of tab, `;`, `|` and `,` that is there."""
    lines = [line.strip().strip("|").strip() for line in text.splitlines()]
    mark = next((mark for mark in "\t;|," if mark in text), None)
    try:
        read = [line.split() for line in lines]
        if mark is not None:
            read = list(csv.reader(lines, delimiter=mark, skipinitialspace=True))
    except csv.Error as error:
        raise InputError(f"{where}: {error}; {EXPECTED}") from error
    rows = [[cell.strip() for cell in row] for row in read]
    cells = [c for row in rows for c in row if _DECIMAL_COMMA.fullmatch(c)]
    if any(not _THOUSANDS.fullmatch(c) for c in cells):
        return [[_decimal_point(c) if c[:1].isdigit() else c for c in row] for row in rows]
    return [[c.replace(",", "") if _THOUSANDS.fullmatch(c) else c for c in row] for row in rows]


def _decimal_point(cell: str) -> str:
    """`1.204,5` and `1 204,5` as `1204.5`."""
    figure = re.match(r"\d{1,3}(?:[.' ]\d{3})+(?!\d)|\d+", cell)
    whole = figure[0] if figure else ""
    return re.sub(r"[.' ]", "", whole) + cell[len(whole) :].replace(",", ".", 1)


def _number(word: str) -> float | None:
    """A number and its unit; `k` and `M` behind it are thousands and millions."""
    figure = _FIGURE.fullmatch(word)
    if figure is None:
        return None
    value = float(figure[1]) * {"k": 1e3, "K": 1e3, "M": 1e6}.get(figure[2] or "", 1.0)
    return value if math.isfinite(value) else None
