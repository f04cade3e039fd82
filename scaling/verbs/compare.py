"""`scaling compare`: every run against the first, or against a named baseline."""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from scaling import baselines, codec
from scaling.analysis.change import Source
from scaling.analysis.compare import Gate, gate, with_split
from scaling.analysis.compare import compare as compared
from scaling.analysis.results import Comparison
from scaling.analysis.sources import read_sources
from scaling.check import to_cost
from scaling.collect import collect
from scaling.errors import InputError
from scaling.files import write_json, write_text
from scaling.folders import check_writable, make_folder
from scaling.plan import Plan
from scaling.rebuild import read_analysis, read_plan
from scaling.report.compared import comparison_page, comparisons_page
from scaling.report.markdown import comparison_markdown
from scaling.report.terminal import print_comparison
from scaling.report.wandb import log_comparison
from scaling.schema import CostConfig
from scaling.store import RunFolder
from scaling.verbs.arguments import parse

PRICE = "cost.usd_per_gpu_hour"
_MACHINE = ("hostname", "cpu", "cores", "kernel", "torch", "device_name")

_GATE = {
    "met": "met",
    "not_met": "NOT met",
    "undecided": "undecided, an interval reaches below it",
    "unjudged": "cannot be judged, a ratio has no interval (too few rounds)",
    "unmeasured": "cannot be judged, one of the runs did not measure all that the other did",
}
Prices = list[float | None]


def main(arguments: list[str]) -> int:
    """As `compare_folders`, from the command line; with --keep the run is the baseline from then on."""
    given = [word for word in arguments if word.startswith("cost.")]
    named = any(word.partition("=")[0] == "--baseline" for word in arguments)
    words = [word for word in arguments if word not in given]
    paths, options = parse("compare", words, least=1 if named else 2, most=99)
    text, name, keep = options.get("--fail-below"), options.get("--baseline"), "--keep" in options
    try:
        ratio = None if text is None else float(text)
    except ValueError as error:
        raise InputError(f"--fail-below {text}: a ratio such as 0.95 is expected") from error
    if keep and (name is None or len(paths) > 1):
        raise InputError(
            "--keep: one run and --baseline NAME are expected beside it; that run becomes the baseline"
        )
    folders = [RunFolder(path).require() for path in paths]
    plans = [read_plan(folder) for folder in folders]
    into = RunFolder(options["--into"]) if "--into" in options else None
    if into is not None:
        check_writable(into.path, f"--into {into.path}")
    prices = _prices(given, len(folders) + (name is not None))
    as_json = "--json" in options
    if name is not None:
        base = baselines.find(name, folders[0], plans[0])
        if base is None and not keep:
            raise baselines.missing(name, folders[0], plans[0])
        if base is None:
            read_analysis(folders[0])  # rebuilt where it is not there: it is what is kept
            print(json.dumps({"comparisons": []}) if as_json else "no baseline yet: nothing to compare with")
            return _kept(name, folders[0], plans[0])
        folders = [base, *folders]
        if read_plan(base).id == plans[0].id:
            print(f"scaling: {folders[1].path}: is the baseline {name} itself", file=sys.stderr)
    stands = compare_folders(folders, Console(), as_json=as_json, into=into, fail_below=ratio, prices=prices)
    if stands == "not_met":
        return 1
    if not keep or name is None:
        return 0
    if stands in ("unjudged", "unmeasured"):
        print(
            f"scaling: baseline {name}: stays as it is, since the gate could not be judged", file=sys.stderr
        )
        return 0
    return _kept(name, folders[1], plans[0])


def compare_folders(
    folders: list[RunFolder],
    console: Console,
    *,
    as_json: bool,
    into: RunFolder | None = None,
    fail_below: float | None = None,
    prices: Prices | None = None,
) -> Gate | None:
    """Compare, print, keep the comparison in `into`; how `fail_below` stands, where it is asked for."""
    analyses = [(read_analysis(folder), read_plan(folder)) for folder in folders]
    (base, base_plan), others = analyses[0], analyses[1:]
    facts = [baselines.environment(folder) for folder in folders]
    usd = prices or [None] * len(folders)
    base_sources = functools.cache(lambda: _sources(folders[0], base_plan, 0))
    found: list[Comparison] = []
    for index, (other, other_plan) in enumerate(others, 1):
        one = compared(
            base,
            other,
            base_plan,
            other_plan,
            same_machine=bool(facts[0]) and _machine(facts[0]) == _machine(facts[index]),
            environments=(facts[0], facts[index]),
            prices=(usd[0], usd[index]),
        )
        if one.comparable:
            one = with_split(one, base_sources(), _sources(folders[index], other_plan, 1))
        found.append(one)
    if fail_below is not None and not all(item.comparable for item in found):
        raise InputError(
            f"--fail-below: the runs are not comparable: {'; '.join(r for i in found for r in i.reasons)}"
        )
    if into is not None:
        make_folder(into.path, f"--into {into.path}")
    documents: list[Any] = [codec.encode(item) for item in found]
    whole = documents[0] if len(documents) == 1 else {"comparisons": documents}
    if as_json:
        print(json.dumps(whole, indent=1))
    else:
        for item in found:
            print_comparison(console, item)
    if into is not None:
        write_json(into.comparison, whole)
        write_text(into.comparison_md, comparison_markdown(found))
        pages = [comparison_page(item, base, other) for item, (other, _) in zip(found, others, strict=True)]
        if len(pages) > 1:
            for index, page in enumerate(pages):
                write_text(into.path / f"comparison-{index + 1}.html", page)
            pages = [comparisons_page(found, base, [other for other, _ in others])]
        write_text(into.comparison_html, pages[0])
        _say(f"comparison: {into.comparison_html}", as_json=as_json)
        warning = log_comparison(into, base_plan, found)
        if warning:
            print(f"scaling: W&B: {warning}", file=sys.stderr)
    stands = None if fail_below is None else gate(found, fail_below)
    if stands is not None:
        _say(f"# gate  {fail_below:g} of the base's throughput: {_GATE[stands]}", as_json=as_json)
    return stands


def _kept(name: str, folder: RunFolder, plan: Plan) -> int:
    at = baselines.keep(name, folder, plan)
    print(f"scaling: baseline {name}: {folder.path} is kept in {at.path}", file=sys.stderr)
    return 0


def _say(line: str, *, as_json: bool) -> None:
    """On stdout, unless a JSON document is all that may be there."""
    print(line, file=sys.stderr if as_json else sys.stdout)


def _prices(words: Sequence[str], runs: int) -> Prices:
    """One for all runs, or a list with one for each, the base first."""
    found: Prices = [None] * runs
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
        checked = [to_cost(CostConfig(usd_per_gpu_hour=value)).usd_per_gpu_hour for value in values]
        found = list(checked) if len(checked) == runs else checked * runs
    return found


def _sources(folder: RunFolder, plan: Plan, seed: int) -> tuple[Source, ...]:
    """What the split starts from; none without the ranks' records. Two runs share no rounds, so neither a seed."""
    if plan.spec.by_case or plan.spec.own_loop or not any(folder.path.glob("launches/*/rank-*.jsonl")):
        return ()
    drawn = dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, seed=plan.spec.seed + seed))
    return read_sources(collect(folder, plan), drawn)


def _machine(facts: dict[str, Any]) -> tuple[str, ...]:
    """What tells one machine from another in the records of a run."""
    return tuple(str(facts.get(key)) for key in _MACHINE)
