"""`scaling study`: runs of one's own script at several world sizes, as one scaling study."""

from __future__ import annotations

from itertools import chain

from rich.console import Console

from scaling.cli.studying import make_study, runs_at, show_study, study_at
from scaling.cli.verbs.arguments import parse
from scaling.errors import InputError
from scaling.records.files import check_writable
from scaling.records.paths import RunFolder, named


def main(arguments: list[str]) -> int:
    """Make the study and print it. One argument is a folder of `scaling launch`, which holds several runs."""
    paths, given = parse("study", arguments, most=99)
    folders = list(chain.from_iterable(map(runs_at, paths)))
    if len(folders) < 2:
        raise InputError(
            f"{paths[0]}: one run; runs at two world sizes or more are expected, or a folder that `scaling launch` made"
        )
    launched = RunFolder(named(paths[0])) if len(paths) == 1 else None
    into = launched if given.into is None else RunFolder(given.into)
    if into is not None:
        check_writable(into.path, f"--into {into.path}")
    analysis, plan = make_study(folders) if launched is None else study_at(launched)
    return show_study(analysis, plan, Console(), as_json=given.json, verbose=given.verbose, into=into)
