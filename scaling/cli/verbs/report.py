"""`scaling report`: print a run's report, open its page, or draw its figures; `scaling analyze`: rebuild it all."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from scaling.cli.measuring import print_report
from scaling.cli.output import print_json, say, warn
from scaling.cli.pipeline import read_analysis, rebuild
from scaling.cli.verbs.arguments import parse
from scaling.records.paths import RunFolder, find_run, is_own, named
from scaling.records.run import read_plan


def main(arguments: list[str]) -> int:
    """Print the report or draw its figures. The exit status is 0, since `scaling run` already gave the run's."""
    paths, given = parse("report", arguments)
    launched = RunFolder(named(paths[0]))
    if launched.study.is_file() and not launched.plan.is_file():
        return _study(launched, open_page=given.open, verbose=given.verbose)
    folder = find_run(paths[0])
    if given.figures is not None:
        return _figures(folder, Path(given.figures))
    print_report(folder, read_analysis(folder), read_plan(folder), verbose=given.verbose)
    if given.open:
        webbrowser.open(folder.report_html.absolute().as_uri())
    return 0


def _study(folder: RunFolder, *, open_page: bool, verbose: bool) -> int:
    """Print the study of a folder that `scaling launch` made, from its records."""
    from scaling.analysis.study.study import study_at  # noqa: PLC0415  polars and scipy are slow to import
    from scaling.cli.verbs.study import show_study  # noqa: PLC0415

    show_study(*study_at(folder), verbose=verbose, into=folder)
    if open_page:
        webbrowser.open(folder.study_html.absolute().as_uri())
    return 0


def _figures(folder: RunFolder, into: Path) -> int:
    """Draw the page's figures from the records."""
    from scaling.report.documents.run import document  # noqa: PLC0415
    from scaling.report.figures import find_browser, write_figures  # noqa: PLC0415  plotly is slow to import

    browser = find_browser(into)
    run = rebuild(folder)
    drawn = document(run.analysis, run.plan, timelines=run.timelines, histories=run.histories)
    for path in write_figures(drawn.plots(), into, browser):
        say(str(path))
    return 0


def analyze(arguments: list[str]) -> int:
    """Rebuild and print. The exit status is that of `scaling run`."""
    paths, given = parse("analyze", arguments)
    folder = find_run(paths[0])
    rebuilt = rebuild(folder)
    if not is_own(folder):
        warn(
            f"{folder.path}: is not yours, or cannot be written to, so nothing is written there: copy it for a page"
        )
    if given.json:
        print_json(rebuilt.analysis)
    else:
        print_report(folder, rebuilt.analysis, rebuilt.plan, verbose=given.verbose)
    return rebuilt.exit_code
