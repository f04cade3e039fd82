"""The folder of an analysis from traces: as a run's, but for the records that it was made of."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from scaling.analysis.results import Analysis, Timeline
from scaling.analysis.timeline import chrome
from scaling.files import write_json, write_text
from scaling.folders import make_folder
from scaling.plan import Plan
from scaling.report.html import page
from scaling.report.markdown import markdown
from scaling.report.terminal import print_analysis
from scaling.run import check_folder
from scaling.store import RunFolder, default_folder


def write_folder(analysis: Analysis, plan: Plan, drawn: tuple[Timeline, ...], path: str | None) -> RunFolder:
    """plan.json, analysis.json, timeline.json and the reports; InputError where they cannot be put."""
    folder = check_folder(Path(path) if path else default_folder(plan.id))
    make_folder(folder.path, str(folder.path))
    write_json(folder.plan, plan)
    write_json(folder.analysis, analysis)
    write_text(folder.timeline, chrome(drawn))
    write_text(folder.report_html, page(analysis, plan, drawn))
    write_text(folder.report_md, markdown(analysis, plan))
    text = io.StringIO()
    print_analysis(
        Console(file=text, width=80, no_color=True), analysis, plan, report_path=folder.report_html
    )
    write_text(folder.report_txt, text.getvalue())
    return folder
