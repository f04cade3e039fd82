"""`scaling sync`: upload what was logged to W&B offline."""

from __future__ import annotations

from scaling.report.sync import sync
from scaling.store import RunFolder
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """Says what went up."""
    paths, _ = parse("sync", arguments, least=1, most=1)
    folder = RunFolder(paths[0])
    print(sync((folder if folder.comparison.is_file() else folder.require()).require_own()))
    return 0
