"""`scaling compare`: every run against the first, or against a named baseline."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from scaling.analysis.compare.runs import Gate, gate
from scaling.analysis.study.study import make_study, same_script
from scaling.cli.api import sweep_of
from scaling.cli.loaded import Run
from scaling.cli.output import print_json, say, warn
from scaling.cli.pipeline import read_analysis
from scaling.cli.verbs.arguments import count, split
from scaling.cli.verbs.study import show_study
from scaling.config.compose import composed
from scaling.config.schema import check
from scaling.errors import InputError
from scaling.launchers.jobs import check_room
from scaling.records import baselines
from scaling.records.files import check_writable, encode, make_folder, write_json, write_text
from scaling.records.paths import RunFolder, find_run
from scaling.records.run import read_plan
from scaling.report import html, markdown, terminal
from scaling.report.documents.comparison import document, several_document
from scaling.report.tracking.wandb import log_comparison
from scaling.settings.plan import Plan
from scaling.settings.run import Cost, Tracking

PRICE = "cost.usd_per_gpu_hour"

_GATE = {
    "met": "met",
    "not_met": "NOT met",
    "undecided": "undecided, an interval reaches below it or is too wide to tell",
    "unjudged": "cannot be judged, a ratio has no interval (too few rounds)",
    "unmeasured": "cannot be judged, one of the runs did not measure all that the other did",
    "batch_unknown": "cannot be judged, the samples of a step are not known (`scaling trace --batch N`, or "
    "`Probe(batch=N)`)",
}
UNDECIDED = 4
"""Exit status where a gate was asked for and what was measured does not decide it."""
Prices = list[float | None]


def main(arguments: list[str]) -> int:
    """Run `compare_folders` with the command line's arguments; --keep makes the run the new baseline."""
    words, given = split("compare", arguments)
    costs = [word for word in words if word.startswith("cost.")]
    name, keep = given.baseline, given.keep
    paths = [word for word in words if word not in costs]
    count("compare", paths, least=2 if name is None else 1, most=99)
    try:
        ratio = None if given.fail_below is None else float(given.fail_below)
    except ValueError:
        ratio = math.nan
    if ratio is not None and not 0 < ratio < math.inf:
        raise InputError(f"--fail-below {given.fail_below}: a ratio such as 0.95 is expected")
    if keep and (name is None or len(paths) > 1):
        raise InputError(
            "--keep: one run and --baseline NAME are expected beside it; that run becomes the baseline"
        )
    if given.undecided not in (None, "ok"):
        raise InputError(f"--undecided {given.undecided}: ok is expected; it makes an undecided gate exit 0")
    if given.undecided and ratio is None:
        raise InputError("--undecided ok: a gate is expected beside it, such as --fail-below 0.95")
    folders = [find_run(path) for path in paths]
    if keep and not given.anyway:
        _require_quiet(folders[0])
    plans = [read_plan(folder) for folder in folders]
    if same_script(plans) and not (given.json or given.into or name or ratio is not None):
        say("# the runs have no world size in common, so this is their scaling study (scaling study)")
        return show_study(*make_study(folders))
    into = None if given.into is None else RunFolder(given.into)
    if into is not None:
        check_writable(into.path, f"--into {into.path}")
        check_room(into, f"--into {into.path}")
    prices = _prices(costs, len(folders) + (name is not None))
    if name is not None:
        base = baselines.find(name, folders[0], plans[0])
        if base is None and not keep:
            raise baselines.missing(name, folders[0], plans[0])
        if base is None:
            read_analysis(folders[0])  # rebuilds it if missing: it is kept
            if given.json:
                print_json({"comparisons": []})
            else:
                say("no baseline yet: nothing to compare with")
            return _kept(name, folders[0], plans[0])
        folders = [base, *folders]
        if read_plan(base).id == plans[0].id:
            warn(f"{folders[1].path}: is the baseline {name} itself")
    stands = compare_folders(
        folders,
        as_json=given.json,
        into=into,
        fail_below=ratio,
        prices=prices,
        tracking=None if into is None else _own_tracking(),
    )
    if stands == "not_met":
        return 1
    if stands not in (None, "met") and not given.undecided:
        if keep:
            warn(
                f"baseline {name}: stays as it is, since the gate is undecided; --undecided ok keeps the run"
            )
        return UNDECIDED
    return _kept(name, folders[1], plans[0]) if keep and name is not None else 0


def _require_quiet(folder: RunFolder) -> None:
    """InputError for a contended run, to which later runs would be held."""
    contended = read_analysis(folder).quality.contended
    if contended:
        raise InputError(
            f"--keep: {folder.path} is contended ({contended[0]}); --anyway keeps it as the baseline all the same"
        )


def compare_folders(
    folders: list[RunFolder],
    *,
    as_json: bool = False,
    into: RunFolder | None = None,
    fail_below: float | None = None,
    prices: Prices | None = None,
    tracking: Tracking | None = None,
) -> Gate | None:
    """Compare, print, and write the comparison to `into`. Returns the gate's state if `fail_below` is given.

    The runs of a multirun, whose folder is `into`, are set against each other only where they did equal work; others
    are set against the first. All of them stand in one table. `tracking`: where the comparison is logged; None: it is
    not.
    """
    runs = [Run(folder.path) for folder in folders]
    together = into is not None and all(folder.path.parent == into.path for folder in folders)
    table, pairs = sweep_of(runs, usd_per_gpu_hour=prices or (), equal_work=together)
    comparisons = [comparison for comparison, _, _ in pairs]
    if fail_below is not None and not all(item.comparable for item in comparisons):
        raise InputError(
            f"--fail-below: the runs are not comparable: {'; '.join(r for i in comparisons for r in i.reasons)}"
        )
    if into is not None:
        make_folder(into.path, f"--into {into.path}")
    beside = sys.stderr if as_json else None  # a JSON document stands alone on standard output
    documents: list[Any] = [encode(item) for item in comparisons]
    analyses = [run.analysis for run in runs]
    pair = len(runs) == 2 and bool(comparisons)
    whole = documents[0] if pair else {"comparisons": documents}
    whole["sweep"] = encode(table)
    if pair:
        report = document(comparisons[0], analyses[0], analyses[1], table)
    else:
        report = several_document(table, comparisons, analyses)
    if as_json:
        print_json(whole)
    else:
        terminal.draw(Console(), report)
    if into is not None:
        write_json(into.comparison, whole)
        write_text(into.comparison_html, html.draw(report))
        if pair:
            write_text(into.comparison_md, markdown.draw(report))
        else:
            write_text(into.comparison_md, markdown.sweep_markdown(table, comparisons, analyses))
            for number, (comparison, base, other) in enumerate(pairs, 1):
                page = html.draw(document(comparison, analyses[base], analyses[other]))
                write_text(into.path / f"comparison-{number}.html", page)
        say(f"comparison: {into.comparison_html}", file=beside)
        if comparisons and tracking:
            problem = log_comparison(into, runs[0].plan, comparisons, tracking)
            if problem:
                warn(f"W&B: {problem}")
    stands = None if fail_below is None else gate(comparisons, fail_below)
    if stands is not None:
        say(f"# gate  {fail_below:g} of the base's throughput: {_GATE[stands]}", file=beside)
    return stands


def _own_tracking() -> Tracking:
    """What the reader's own configuration says: the runs may be somebody else's."""
    config = composed([]).tracking
    settings = {field.name: getattr(config, field.name) for field in dataclasses.fields(Tracking)}
    return Tracking(**{**settings, "tags": tuple(settings["tags"])})


def _kept(name: str, folder: RunFolder, plan: Plan) -> int:
    at = baselines.keep(name, folder, plan)
    warn(f"baseline {name}: {folder.path} is kept in {at.path}")
    return 0


def _prices(words: Sequence[str], runs: int) -> Prices:
    """The price of each run, from one price for all or a list with one for each, the base first."""
    prices: Prices = [None] * runs
    for word in words:
        key, _, text = word.partition("=")
        if key != PRICE:
            raise InputError(
                f"{word}: there is {PRICE}=2.5, or {PRICE}=[2.5,4] with one for each run, the base first"
            )
        try:
            values = [float(part) for part in text.strip("[]").split(",")]
        except ValueError as error:
            raise InputError(f"{word}: a price above 0 is expected, such as 2.5 or [2.5,4]") from error
        if len(values) != runs and (len(values) > 1 or text.startswith("[")):
            raise InputError(f"{word}: one price or {runs} are expected, the base's first")
        for value in values:
            check(Cost, Cost(usd_per_gpu_hour=value), "cost")
        prices = list(values) if len(values) == runs else [values[0]] * runs
    return prices
