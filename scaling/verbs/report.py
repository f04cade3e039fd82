"""`scaling report`: print a run's report; open its page on request."""

from __future__ import annotations

import webbrowser

from rich.console import Console

from scaling.rebuild import read_analysis, read_plan
from scaling.report.terminal import print_analysis
from scaling.store import RunFolder
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """Always 0: the run's own status was told when it was measured."""
    paths, options = parse("report", arguments, {"--open": False}, least=1, most=1)
    folder = RunFolder(paths[0]).require()
    print_analysis(Console(), read_analysis(folder), read_plan(folder), report_path=folder.report_html)
    if options["--open"]:
        webbrowser.open(folder.report_html.absolute().as_uri())
    return 0
