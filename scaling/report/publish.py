"""The report files of a run: one document, built once, in every form that a run folder has.

A run in a few lines, for a Python shell and a notebook.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console

from scaling.analysis.results import Analysis, StepHistory, Timeline
from scaling.analysis.results.machine import MachineGroup
from scaling.plain import plain
from scaling.records.files import write_text
from scaling.records.paths import RunFolder
from scaling.report import cases, findings, html, markdown, terminal, text
from scaling.report.documents import run
from scaling.report.figures import chrome
from scaling.report.key_figures import brief_table
from scaling.report.model import Table
from scaling.settings.plan import Plan


def publish(
    folder: RunFolder,
    analysis: Analysis,
    plan: Plan,
    timelines: Sequence[Timeline],
    histories: Sequence[StepHistory] = (),
    machines: Sequence[MachineGroup] = (),
) -> None:
    """Write report.html, report.md, report.txt and timeline.json; OSError where the folder cannot be written to."""
    document = run.document(
        analysis,
        plan,
        timelines=timelines,
        histories=histories,
        machines=machines,
        report_path=folder.report_html,
    )
    written = io.StringIO()
    terminal.draw(Console(file=written, width=text.WIDTH, no_color=True), document)
    write_text(folder.timeline, chrome(timelines))
    write_text(folder.report_html, html.draw(document))
    write_text(folder.report_md, markdown.draw(document))
    write_text(folder.report_txt, written.getvalue())


def brief(analysis: Analysis) -> str:
    """What was measured, a line for each world size or case, and the first verdict."""
    lines = [_what(analysis)]
    for table in _tables(analysis):
        lines += _aligned((_heads(table), *table.rows))
    return "\n".join([*lines, *_verdict(analysis)])


def brief_html(analysis: Analysis, path: str) -> str:
    """A run's summary as HTML, with its folder."""
    tables = [(_heads(table), table.rows) for table in _tables(analysis)]
    return html.render(
        "brief.html.j2", what=_what(analysis), path=path, tables=tables, verdict=_verdict(analysis)
    )


def _what(analysis: Analysis) -> str:
    run = analysis.run
    parts = [f"{run.model} on {run.topology}", run.precision, run.mode, f"{run.backend} on {run.device}"]
    return plain(", ".join([*parts, text.moment(run.started)]))


def _tables(analysis: Analysis) -> Iterator[Table]:
    """World sizes, or the cases of a run by cases."""
    if analysis.points:
        yield brief_table(analysis.points)
    if analysis.inference:
        yield cases.inference_table(analysis.inference)
    if analysis.training:
        yield cases.training_table(analysis.training)


def _heads(table: Table) -> tuple[str, ...]:
    return tuple(f"{name} {unit}".strip() for name, unit in table.columns)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.rjust, row, widths)) for row in rows]


def _verdict(analysis: Analysis) -> list[str]:
    """The first verdict; nothing where there is none."""
    return [
        f"first verdict: {findings.verdict_title(v)}, confidence {v.confidence}"
        for v in analysis.verdicts[:1]
    ]
