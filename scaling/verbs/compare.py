"""`scaling compare`: every run against the first."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console

from scaling import codec
from scaling.analysis.compare import compare as compared
from scaling.errors import InputError
from scaling.rebuild import read_analysis, read_plan
from scaling.report.html import comparison_page
from scaling.report.terminal import print_comparison
from scaling.store import RunFolder, write_json, write_text
from scaling.verbs.arguments import parse


def main(arguments: list[str]) -> int:
    """As `compare_folders`, from the command line."""
    paths, options = parse(
        "compare", arguments, {"--json": False, "--fail-below": True, "--into": True}, least=2, most=99
    )
    text = options.get("--fail-below")
    try:
        ratio = None if text is None else float(text)
    except ValueError as error:
        raise InputError(f"--fail-below {text}: a ratio such as 0.95 is expected") from error
    folders = [RunFolder(path).require() for path in paths]
    into = None if options.get("--into") is None else RunFolder(str(options["--into"]))
    if into is not None and not into.path.is_dir():
        raise InputError(f"--into {into.path}: no such folder; name one that is there")
    return compare_folders(folders, Console(), as_json=bool(options["--json"]), into=into, fail_below=ratio)


def compare_folders(
    folders: list[RunFolder],
    console: Console,
    *,
    as_json: bool,
    into: RunFolder | None = None,
    fail_below: float | None = None,
) -> int:
    """Compare, print, keep the comparison in `into`; 1 when `fail_below` is asked for and not met."""
    analyses = [(read_analysis(folder), read_plan(folder)) for folder in folders]
    (base, base_plan), others = analyses[0], analyses[1:]
    machine = _machine(folders[0])
    found = [
        compared(
            base,
            other,
            base_plan,
            other_plan,
            same_machine=machine is not None and machine == _machine(folder),
        )
        for folder, (other, other_plan) in zip(folders[1:], others, strict=True)
    ]
    documents: list[Any] = [codec.encode(item) for item in found]
    whole = documents[0] if len(documents) == 1 else {"comparisons": documents}
    if as_json:
        print(json.dumps(whole, indent=1))
    else:
        for item in found:
            print_comparison(console, item)
    if into is not None:
        write_json(into.comparison, whole)
        for index, (item, (other, _)) in enumerate(zip(found, others, strict=True)):
            name = "comparison.html" if len(found) == 1 else f"comparison-{index + 1}.html"
            write_text(into.path / name, comparison_page(item, base, other))
            console.print(f"comparison: {into.path / name}", soft_wrap=True, highlight=False)
    if fail_below is None:
        return 0
    if not all(item.comparable for item in found):
        raise InputError(
            f"--fail-below: the runs are not comparable: {'; '.join(r for i in found for r in i.reasons)}"
        )
    ratios = [p.ratio for item in found for p in item.points]
    ratios += [c.ratio for item in found for c in item.cases]
    return int(any(r is not None and r.high is not None and r.high < fail_below for r in ratios))


def _machine(folder: RunFolder) -> tuple[str, ...] | None:
    """What tells one machine from another in the records of a run; None where they are gone."""
    try:
        record = json.loads(folder.launch(0).env(0).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tuple(
        str(record.get(key)) for key in ("hostname", "cpu", "cores", "kernel", "torch", "device_name")
    )
