"""`scaling sync`: upload what was logged to W&B offline."""

from __future__ import annotations

from scaling.cli.output import say
from scaling.cli.verbs.arguments import parse
from scaling.records.paths import RunFolder, find_run, named, require_own
from scaling.report.tracking.sync import sync


def main(arguments: list[str]) -> int:
    """Upload, and print what was uploaded."""
    paths, _ = parse("sync", arguments)
    folder = RunFolder(named(paths[0]))
    say(sync(require_own(folder if folder.comparison.is_file() else find_run(paths[0]))))
    return 0
