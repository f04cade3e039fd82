"""`scaling analyze`: rebuild everything derived from the rank files, and print it."""

from __future__ import annotations

import json

from rich.console import Console

from scaling import codec
from scaling.rebuild import rebuild
from scaling.report.terminal import print_analysis
from scaling.store import RunFolder
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """The run's exit status as when it was measured."""
    paths, options = parse("analyze", arguments, least=1, most=1)
    folder = RunFolder(paths[0]).require()
    rebuilt = rebuild(folder)
    if "--json" in options:
        print(json.dumps(codec.encode(rebuilt.analysis), indent=1))
    else:
        print_analysis(Console(), rebuilt.analysis, rebuilt.plan, report_path=folder.report_html)
    return rebuilt.exit_code
