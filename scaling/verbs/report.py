"""`scaling report`: print a run's report; open its page, or write its figures to files, on request."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from rich.console import Console

from scaling.rebuild import read_analysis, read_plan, rebuild
from scaling.report.terminal import print_analysis
from scaling.store import RunFolder
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """Always 0: the run's own status was told when it was measured."""
    paths, options = parse("report", arguments, least=1, most=1)
    folder = RunFolder(paths[0]).require()
    if "--figures" in options:
        return _figures(folder, Path(options["--figures"]))
    print_analysis(Console(), read_analysis(folder), read_plan(folder), report_path=folder.report_html)
    if "--open" in options:
        webbrowser.open(folder.report_html.absolute().as_uri())
    return 0


def _figures(folder: RunFolder, into: Path) -> int:
    """Draw what the page draws, from the records."""
    from scaling.report.figures import find_browser, write_figures  # noqa: PLC0415  plotly is slow to import
    from scaling.report.html import figures_of  # noqa: PLC0415

    browser = find_browser(into)
    found = rebuild(folder)
    plots = figures_of(found.analysis, found.plan, found.timelines, found.histories)
    for path in write_figures(plots, into, browser):
        print(path)
    return 0
