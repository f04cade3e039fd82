"""How well the numbers of a run are known: what was reached, warnings, and the checks."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results import Analysis, PeakMemory, Point, Quality
from scaling.report import findings, text
from scaling.report.fabric import fabric_lines
from scaling.report.model import MARKDOWN, PAGE, TERMINAL, Line, Lines, Section, lines

HOW_SURE = "how sure"


def of_the_answer(quality: Quality) -> tuple[Line, ...]:
    """How well the answer is known, and how many warnings there are."""
    said = [Line(text=text.sentence(reached)) for reached in quality.reached]
    if quality.warnings:
        many = text.count(len(quality.warnings), "warning")
        said.append(Line(text=many, link=(many, HOW_SURE)))
    return tuple(said)


def sections(analysis: Analysis, *, crossed_in: str) -> Iterator[Section]:
    """`crossed_in`: the title of the section whose figure marks contended steps, empty without one."""
    quality = analysis.quality
    yield Section(title="quality", blocks=(_quality(quality),), on=TERMINAL)
    measured = findings.measured_lines(quality)
    page = (
        lines(*map(text.sentence, quality.warnings), look="warnings"),
        _contended(quality, crossed_in),
        lines(*map(text.sentence, (*measured, *_checks(analysis)))),
    )
    yield Section(title=HOW_SURE, blocks=page, on=PAGE)
    markdown = (lines(*measured, *fabric_lines(analysis.fabric)),)
    yield Section(title="how sure, and the fabric", blocks=markdown, on=MARKDOWN, folded_on=MARKDOWN)


def _quality(quality: Quality) -> Lines:
    return lines(*findings.quality_lines(quality), look="warnings")


def _checks(analysis: Analysis) -> Iterator[str]:
    """World size by world size, what was checked beside the step itself."""
    for point in analysis.points:
        for said in _checks_at(point, analysis.run.device):
            yield f"{text.ranks(point.world_size)}: {said}"


def _checks_at(point: Point, device: str) -> Iterator[str]:
    if point.overhead.probe_over_plain:
        yield f"the probe's own cost is {findings.overhead_line(point.overhead)}"
    if point.memory != PeakMemory():
        yield f"memory {findings.memory_line(point.memory, device)}"
    if point.loader:
        yield f"batches {findings.loader_line(point.loader)}"
    if said := findings.cost_line(point.cost):
        yield f"cost {said}"
    if point.closure:
        yield findings.closure_line(point.closure)


def _contended(quality: Quality, crossed_in: str) -> Lines:
    """Where to see when other programs ran."""
    if not quality.contended_blocks or not crossed_in:
        return Lines(items=())
    many, where = text.count(quality.contended_blocks, "compute block"), text.headline(crossed_in)
    said = f"Contended: {many}; the steps near them are crossed in {where}."
    return Lines(items=(Line(text=said, link=(where, crossed_in)),), look="note")
