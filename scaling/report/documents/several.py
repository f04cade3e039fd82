"""Several runs against the first of them, as one page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scaling.analysis.results import Analysis, Comparison, PointComparison
from scaling.report import cases, text, versus
from scaling.report.documents.comparison import RATIO_NOTE
from scaling.report.key_figures import compared_table
from scaling.report.model import PAGE, Block, Document, Figure, Section, Table, lines
from scaling.report.plots.efficiency import scaling_curve
from scaling.report.plots.steps import parts


def document(comparisons: Sequence[Comparison], base: Analysis, others: Sequence[Analysis]) -> Document:
    """`comparisons`: each of the others against the base, in their order."""
    names = versus.names_of([base.run, *(a.run for a in others)])
    series = list(zip(names, (a.points for a in (base, *others)), strict=True))
    largest = max((p.world_size for _, points in series for p in points), default=0)
    at_largest = [(name, p.parts_ms) for name, points in series for p in points if p.world_size == largest]
    sections = (
        ("not comparable", (lines(*_reasons(comparisons, names[1:]), look="warnings"),)),
        ("cases", tuple(_cases(comparisons, names))),
        ("throughput", (_ratios(comparisons, names),)),
        ("scaling", (Figure(plot=scaling_curve(series)),)),
        ("parts of a step", (Figure(plot=parts(at_largest), title=text.ranks(largest)),)),
        ("key figures", (compared_table(series),)),
    )
    return Document(
        title=f"{text.count(len(others), 'run')} against {names[0]}",
        answer=versus.answer_of_several(comparisons, names),
        sections=tuple(Section(title=title, blocks=blocks, on=PAGE) for title, blocks in sections),
    )


def _reasons(comparisons: Sequence[Comparison], names: Sequence[str]) -> Iterator[str]:
    for name, one in zip(names, comparisons, strict=True):
        if not one.comparable:
            yield f"{name}: {'; '.join(one.reasons)}"


def _cases(comparisons: Sequence[Comparison], names: Sequence[str]) -> Iterator[Block]:
    """A table of cases for each run that can be compared."""
    for name, one in zip(names[1:], comparisons, strict=True):
        if one.comparable and one.cases:
            title = f"{name} against {names[0]}"
            yield replace(cases.comparison_table(one), title=title, label=title)


def _ratios(comparisons: Sequence[Comparison], names: Sequence[str]) -> Table:
    """A row for each run, a column for each world size."""
    sizes = sorted({p.world_size for one in comparisons for p in one.points})
    rows = [(f"{names[0]} (base)", *("1" for _ in sizes))] if sizes else []
    for name, one in zip(names[1:], comparisons, strict=True):
        points = {p.world_size: p for p in one.points} if one.comparable else {}
        rows += [(name, *(_ratio(points.get(n)) for n in sizes))] if sizes else []
    columns = (("run", ""), *((text.ranks(n), "other / base") for n in sizes))
    return Table(columns=columns, rows=tuple(rows), label="Throughput", note=RATIO_NOTE)


def _ratio(point: PointComparison | None) -> str:
    if point is None:
        return text.NONE
    unclear = text.undistinguished(point.ratio, distinguishable=point.distinguishable)
    return f"{text.quantity(point.ratio)} ({unclear})" if unclear else text.quantity(point.ratio)
