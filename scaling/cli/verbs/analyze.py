"""`scaling analyze`: rebuild everything derived from the rank files, and print it."""

from __future__ import annotations

from scaling.cli.measuring import print_report
from scaling.cli.output import print_json
from scaling.cli.pipeline import rebuild
from scaling.cli.verbs.arguments import parse
from scaling.records.paths import find_run


def main(arguments: list[str]) -> int:
    """Rebuild and print. The exit status is that of `scaling run`."""
    paths, given = parse("analyze", arguments)
    folder = find_run(paths[0])
    rebuilt = rebuild(folder)
    if given.json:
        print_json(rebuilt.analysis)
    else:
        print_report(folder, rebuilt.analysis, rebuilt.plan, verbose=given.verbose)
    return rebuilt.exit_code
