"""Several runs as one table, and those of equal work against each other, as one document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from scaling.analysis.results import Analysis, Comparison, PointComparison, Sweep
from scaling.plain import plain
from scaling.report import cases, side_by_side, text
from scaling.report.documents import sweep as table_of
from scaling.report.documents.comparison import RATIO_NOTE
from scaling.report.key_figures import compared_table
from scaling.report.model import EVERYWHERE, MARKDOWN, PAGE, Block, Document, Figure, Section, Table, lines
from scaling.report.plots.efficiency import scaling_curve
from scaling.report.plots.steps import parts
from scaling.report.side_by_side import allocation_lines, allocations_answer


def document(sweep: Sweep, comparisons: Sequence[Comparison], runs: Sequence[Analysis]) -> Document:
    """`comparisons`: of runs in the sweep with each other, by their ids; `runs`: the sweep's, in its order."""
    names = {run.run.id: plain(name) for name, run in zip(sweep.names, runs, strict=True)}
    series = [(plain(name), run.points) for name, run in zip(sweep.names, runs, strict=True)]
    largest = max((p.world_size for _, points in series for p in points), default=0)
    at_largest = [(name, p.parts_ms) for name, points in series for p in points if p.world_size == largest]
    reasons = lines(*_reasons(comparisons, names), look="warnings")
    contended = lines(*sweep.contended, look="warnings")
    sections = (
        ("not comparable", (reasons,), EVERYWHERE),
        ("contended", (contended,), EVERYWHERE),
        ("allocations", (lines(*_allocations(comparisons)),), EVERYWHERE),
        (table_of.TITLE, (table_of.table(sweep),), EVERYWHERE),
        ("cases", tuple(_cases(comparisons, names)), PAGE),
        ("throughput of equal work", (_ratios(comparisons, names),), PAGE | MARKDOWN),
        ("scaling", (Figure(plot=scaling_curve(series)),), PAGE),
        ("parts of a step", (Figure(plot=parts(at_largest), title=text.ranks(largest)),), PAGE),
        ("key figures", (compared_table(series),), PAGE),
    )
    return Document(
        title=text.count(len(runs), "run"),
        answer=" ".join([table_of.answer(sweep), *_on_nodes(comparisons)]),
        sections=tuple(Section(title=title, blocks=blocks, on=on) for title, blocks, on in sections),
    )


def _on_nodes(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """What the table of all runs cannot say: ratios of several allocations, or that there is one of each."""
    decided = [one for one in comparisons if any(point.allocations for point in one.points)]
    yield from map(side_by_side.answer, decided)
    others = [one for one in comparisons if one.allocations and one not in decided]
    for one in others[:1]:
        yield allocations_answer(one, side_by_side.run_names(one))


def _allocations(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Lines of all comparisons; those of a base that they share are given once."""
    yield from dict.fromkeys(
        line for one in comparisons for line in allocation_lines(one, side_by_side.run_names(one))
    )


def _reasons(comparisons: Sequence[Comparison], names: dict[str, str]) -> Iterator[str]:
    for one in comparisons:
        if not one.comparable:
            yield f"{names[one.other.id]} with {names[one.base.id]}: {'; '.join(map(plain, one.reasons))}"


def _cases(comparisons: Sequence[Comparison], names: dict[str, str]) -> Iterator[Block]:
    """A table of cases for each run that can be compared."""
    for one in comparisons:
        if one.comparable and one.cases:
            title = f"{names[one.other.id]} against {names[one.base.id]}"
            yield replace(cases.comparison_table(one), title=title, label=title)


def _ratios(comparisons: Sequence[Comparison], names: dict[str, str]) -> Table:
    """A row for each run that did the same work as another, below the run that it is set against."""
    alike = [one for one in comparisons if one.comparable]
    sizes = sorted({p.world_size for one in alike for p in one.points})
    rows = []
    for base in dict.fromkeys(one.base.id for one in alike) if sizes else ():
        rows.append((f"{names[base]} (base)", *("1" for _ in sizes)))
        for one in alike:
            if one.base.id == base:
                points = {p.world_size: p for p in one.points}
                rows.append((names[one.other.id], *(_ratio(points.get(n)) for n in sizes)))
    columns = (("run", ""), *((text.ranks(n), "other / base") for n in sizes))
    return Table(columns=columns, rows=tuple(rows), label="Throughput", note=RATIO_NOTE)


def _ratio(point: PointComparison | None) -> str:
    if point is None:
        return text.NONE
    unclear = text.undistinguished(point.ratio, distinguishable=point.distinguishable)
    return f"{text.quantity(point.ratio)} ({unclear})" if unclear else text.quantity(point.ratio)
