"""The report files of a run: one document, built once, in every form that a run folder has."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console

from scaling.analysis.results import Analysis, StepHistory, Timeline
from scaling.analysis.results.machine import MachineGroup
from scaling.records.files import write_text
from scaling.records.paths import RunFolder
from scaling.report import html, markdown, terminal
from scaling.report.documents import run
from scaling.report.figures import chrome
from scaling.report.text import WIDTH
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
    terminal.draw(Console(file=written, width=WIDTH, no_color=True), document)
    write_text(folder.timeline, chrome(timelines))
    write_text(folder.report_html, html.draw(document))
    write_text(folder.report_md, markdown.draw(document))
    write_text(folder.report_txt, written.getvalue())
