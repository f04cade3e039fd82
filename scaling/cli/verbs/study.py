"""`scaling study`: runs of one's own script at several world sizes, as one scaling study."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from rich.console import Console

from scaling.analysis.results import Analysis
from scaling.analysis.study.own_numbers import EXPECTED, concluded, read_numbers, to_measure
from scaling.analysis.study.study import make_study, runs_at, study_at
from scaling.cli.output import print_json, say
from scaling.cli.verbs.arguments import parse
from scaling.errors import InputError, while_reading
from scaling.launchers.jobs import check_room
from scaling.reading import read_text
from scaling.records.files import check_writable, encode, make_folder, write_json, write_text
from scaling.records.paths import RunFolder, named
from scaling.report.documents import run as report
from scaling.report.html import draw as page
from scaling.report.key_figures import key_table
from scaling.report.model import Document, Section
from scaling.report.terminal import draw
from scaling.settings.plan import Plan


def main(arguments: list[str]) -> int:
    """Make the study and print it. One argument is a folder of `scaling launch`, which holds several runs."""
    paths, given = parse("study", arguments, most=99)
    if len(paths) == 1 and Path(paths[0]).is_file():
        if given.into:
            raise InputError("--into: is for runs; a table of numbers makes no report")
        return _own_numbers(Path(paths[0]), as_json=given.json)
    folders = list(chain.from_iterable(map(runs_at, paths)))
    if len(folders) < 2:
        raise InputError(
            f"{paths[0]}: one run; runs at two world sizes or more are expected, or a folder that `scaling launch` made"
        )
    launched = RunFolder(named(paths[0])) if len(paths) == 1 else None
    into = launched if given.into is None else RunFolder(given.into)
    if into is not None:
        check_writable(into.path, f"--into {into.path}")
        if into is not launched:
            check_room(into, f"--into {into.path}", study=True)
    analysis, plan = make_study(folders) if launched is None else study_at(launched)
    return show_study(analysis, plan, as_json=given.json, verbose=given.verbose, into=into)


def show_study(
    analysis: Analysis,
    plan: Plan,
    *,
    as_json: bool = False,
    verbose: bool = False,
    into: RunFolder | None = None,
) -> int:
    """Print a study; write study.json and study.html to `into`, which is made if needed. Returns the exit status."""
    document = report.document(analysis, plan, report_path=None if into is None else into.study_html)
    if into is not None:
        make_folder(into.path, f"--into {into.path}")
        write_json(into.study, analysis)
        write_text(into.study_html, page(document))
    if as_json:
        print_json(analysis)
    else:
        draw(Console(), document, verbose=verbose)
        if not verbose:
            rows = Section(title="", blocks=(key_table(analysis.points),))
            draw(Console(), Document(sections=(rows,)))
    return 0 if analysis.whole else 3


def _own_numbers(path: Path, *, as_json: bool) -> int:
    """A table of GPUs and throughput: speedup, efficiency, where it breaks, and what to measure. Writes nothing."""
    with while_reading(path, EXPECTED):
        text = read_text(path, strict=False)
    numbers, assumed = read_numbers(text, str(path))
    lines, sizes = tuple(concluded(numbers)), ",".join(map(str, to_measure(numbers)))
    command = f"scaling launch --no-probe --world-sizes {sizes} train.py"
    if as_json:
        print_json(
            {"kind": "own_numbers", "points": encode(numbers), "said": [*lines, *assumed], "try": command}
        )
        return 0
    say(f"#{'gpus':>5} {'throughput':>12} {'speedup':>8} {'efficiency':>10} {'kept a GPU':>10}")
    for n in numbers:
        kept = "-" if n.kept is None else f"{n.kept:.0%}"
        say(f" {n.world_size:>5} {n.throughput:>12.5g} {n.speedup:>8.3g} {n.efficiency:>10.0%} {kept:>10}")
    say(*(f"# {line}" for line in (*lines, *assumed)))
    say(
        "# why is not in these numbers: a measurement has to show what a step waits for at these sizes (data on the "
        "link, a late rank, input, the host)",
        f"# try  {command}",
    )
    return 0
