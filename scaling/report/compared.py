"""Runs side by side as one HTML file: two in detail, or several against the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaling.analysis.results import Analysis, Comparison, Parts, Point, PointComparison
from scaling.report import cases, text, versus
from scaling.report.conditions import conditions
from scaling.report.document import (
    Figures,
    contents,
    document,
    esc,
    items,
    lead,
    note,
    pair,
    section,
    table,
)
from scaling.report.plots.efficiency import scaling_curve
from scaling.report.plots.steps import parts
from scaling.report.plots.waterfall import differences

CAUSES_SHOWN = 6
"""Causes of a difference that a comparison draws for each world size."""
COLUMNS = ("ranks", "step", "samples", "efficiency", "transfer", "skew", "busbw")
"""Of the key figures, where those of several runs stand below each other."""
RATIO_NOTE = "other run over base: above 1 the other is faster; ±: half of the 95 % interval"


def comparison_page(comparison: Comparison, base: Analysis, other: Analysis) -> str:
    """The report of two runs side by side, as the text of an HTML file."""
    names = versus.run_names(comparison)
    figures = Figures()
    curve = scaling_curve([(f"base: {names[0]}", base.points), (f"other: {names[1]}", other.points)])
    found = (
        section("Not comparable", items([] if comparison.comparable else comparison.reasons)),
        section(
            "Cases", table(*cases.comparison_table(comparison), label="Cases") if comparison.cases else ""
        ),
        section("Throughput", _ratios(comparison)),
        section("Scaling", figures.add(curve)),
        section("What makes the difference", _differences(comparison, figures)),
        section("Compute and fabric", items(_of_points(comparison, versus.split_line))),
        section("Cost", items(_of_points(comparison, lambda p: "; ".join(versus.cost_lines(p.cost))))),
        section("Roofline", items(comparison.roofline)),
        section("Parts of a step", figures.add(parts(_paired_parts(base, other)))),
        section("Conditions", _both_conditions(comparison)),
        section("What else differs", _settings(comparison)),
    )
    sections = [one for one in found if one]
    title = f"{names[1]} against {names[0]}"
    answer = lead(versus.answer(comparison), bad=not comparison.comparable)
    body = (f"<header><h1>{esc(title)}</h1></header>", answer, contents(sections), *sections)
    return document(title, "".join(body), figures)


def comparisons_page(comparisons: Sequence[Comparison], base: Analysis, others: Sequence[Analysis]) -> str:
    """Several runs against the first, as the text of an HTML file."""
    names = versus.names_of([base.run, *(a.run for a in others)])
    figures = Figures()
    series = [(name, a.points) for name, a in zip(names, (base, *others), strict=True)]
    largest = max((p.world_size for a in (base, *others) for p in a.points), default=0)
    at_largest = [(name, p.parts_ms) for name, points in series for p in points if p.world_size == largest]
    found = (
        section("Not comparable", items(_reasons(comparisons, names[1:]), "warnings")),
        section("Cases", _all_cases(comparisons, names)),
        section("Throughput", _all_ratios(comparisons, names)),
        section("Scaling", figures.add(scaling_curve(series))),
        section("Parts of a step", figures.add(parts(at_largest), text.ranks(largest))),
        section("Key figures", _all_figures(series)),
    )
    sections = [one for one in found if one]
    title = f"{text.count(len(others), 'run')} against {names[0]}"
    said = versus.answer_of_several(comparisons, names)
    body = (f"<header><h1>{esc(title)}</h1></header>", lead(said), contents(sections), *sections)
    return document(title, "".join(body), figures)


def _ratios(comparison: Comparison) -> str:
    rows = [
        (
            str(p.world_size),
            text.quantity(p.ratio),
            text.quantity(p.control),
            text.undistinguished(p.ratio, distinguishable=p.distinguishable)
            if p.ratio
            else "not measured in both",
        )
        for p in comparison.points
    ]
    columns = (("ranks", ""), ("other / base", "throughput"), ("a rank alone", "1 but for drift"), ("", ""))
    return table(columns, rows, label="Throughput") + note(RATIO_NOTE) if rows else ""


def _differences(comparison: Comparison, figures: Figures) -> str:
    return pair(
        figures.add(
            differences(versus.largest_causes(p.causes, CAUSES_SHOWN), p.world_size),
            text.ranks(p.world_size),
        )
        for p in comparison.points
    )


def _of_points(comparison: Comparison, line: Callable[[PointComparison], str]) -> list[str]:
    """A line a world size, where there is one."""
    found = ((p.world_size, line(p)) for p in comparison.points)
    return [f"{text.ranks(n)}: {said}" for n, said in found if said]


def _settings(comparison: Comparison) -> str:
    rows = [(s.key, s.base or text.NONE, s.other or text.NONE, s.of) for s in comparison.settings]
    columns = (("", ""), ("base", ""), ("other", ""), ("", ""))
    return table(columns, rows, label="What else differs", kind="words") if rows else ""


def _paired_parts(base: Analysis, other: Analysis) -> list[tuple[str, Parts]]:
    others = {p.world_size: p.parts_ms for p in other.points}
    both = [(p.world_size, p.parts_ms, others[p.world_size]) for p in base.points if p.world_size in others]
    return [
        (f"{text.ranks(n)}, {name}", parts)
        for n, first, second in both
        for name, parts in (("base", first), ("other", second))
    ]


def _both_conditions(comparison: Comparison) -> str:
    base, other = conditions(comparison.base), conditions(comparison.other)
    rows = [(name, a, b, "" if a == b else "differs") for (name, a), (_, b) in zip(base, other, strict=True)]
    columns = (("", ""), ("base", ""), ("other", ""), ("", ""))
    return table(columns, rows, label="Conditions", kind="words")


def _reasons(comparisons: Sequence[Comparison], names: Sequence[str]) -> list[str]:
    return [
        f"{name}: {'; '.join(one.reasons)}"
        for name, one in zip(names, comparisons, strict=True)
        if not one.comparable
    ]


def _all_cases(comparisons: Sequence[Comparison], names: Sequence[str]) -> str:
    """A table of cases a run, of those that can be compared."""
    tables = []
    for name, one in zip(names[1:], comparisons, strict=True):
        if one.comparable and one.cases:
            title = f"{name} against {names[0]}"
            tables.append(f"<h3>{esc(title)}</h3>" + table(*cases.comparison_table(one), label=title))
    return "".join(tables)


def _all_ratios(comparisons: Sequence[Comparison], names: Sequence[str]) -> str:
    """A row a run, a column a world size."""
    sizes = sorted({p.world_size for one in comparisons for p in one.points})
    if not sizes:
        return ""
    rows = [(f"{names[0]} (base)", *("1" for _ in sizes))]
    for name, one in zip(names[1:], comparisons, strict=True):
        points = {p.world_size: p for p in one.points} if one.comparable else {}
        cells = []
        for n in sizes:
            point = points.get(n)
            found = text.quantity(point.ratio if point else None)
            unclear = (
                text.undistinguished(point.ratio, distinguishable=point.distinguishable) if point else ""
            )
            cells.append(f"{found} ({unclear})" if unclear else found)
        rows.append((name, *cells))
    columns = [("run", ""), *((text.ranks(n), "other / base") for n in sizes)]
    return table(columns, rows, label="Throughput") + note(RATIO_NOTE)


def _all_figures(series: Sequence[tuple[str, Sequence[Point]]]) -> str:
    shown = [index for index, (name, _) in enumerate(text.COLUMNS) if name in COLUMNS]
    rows = []
    for run, points in series:
        for point in points:
            cells = text.key_figures(point)
            rows.append((run, *(cells[index] for index in shown)))
    columns = (("run", ""), *(text.COLUMNS[index] for index in shown))
    return table(columns, rows, label="Key figures") + note(text.COLUMNS_NOTE) if rows else ""
