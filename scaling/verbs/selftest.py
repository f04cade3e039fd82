"""`scaling selftest`: put known causes in, see whether the verdicts find them, print the hit rate."""

from __future__ import annotations

import json
import signal
import sys

from rich.console import Console

from scaling import codec
from scaling.analysis import selftest
from scaling.analysis.results import SelfTestCase
from scaling.config import requests
from scaling.errors import ScalingError
from scaling.files import write_json
from scaling.plan import Plan
from scaling.rebuild import rebuild
from scaling.report.progress import watching
from scaling.report.proof import print_case, print_selftest
from scaling.run import check_folder, create, measure, plan_request
from scaling.store import RunFolder, default_folder
from scaling.verbs.arguments import split


def main(arguments: list[str]) -> int:
    """0 when every injection is found, nothing else is named and the shares are right; else 1, 3 when interrupted."""
    given, options = split("selftest", arguments)
    cases = [c for c in selftest.CASES if "--full" in options or not c.full]
    asked = []
    for case in cases:
        asked.append(requests("selftest", [*selftest.overrides(case), *given]))
        if not asked[-1].items:
            return 0  # help was asked for
    plans = [plan_request(a.items[0]) for a in asked]
    parent = RunFolder(asked[0].items[0].run_dir or default_folder(plans[0].id))
    folders = [check_folder(parent.path / f"{k:02}") for k in range(len(cases))]
    check_folder(parent.path)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(stderr="--json" in options)
    graded: list[SelfTestCase] = []
    interrupted = False
    for case, request, plan, folder in zip(cases, asked, plans, folders, strict=True):
        create(request.items[0], plan, folder)
        with watching(plan) as progress:
            interrupted = measure(plan, folder, progress).state == "interrupted"
        if interrupted:
            break
        found = _graded(case, folder, plan)
        if found is not None:
            graded.append(found)
            print_case(console, found)
    whole = selftest.summary(graded, len(cases))
    write_json(parent.path / "selftest.json", whole)
    if "--json" in options:
        print(json.dumps(codec.encode(whole), indent=1))
    print_selftest(console, whole, parent.path)
    return 3 if interrupted else int(not whole.passed)


def _graded(case: selftest.Case, folder: RunFolder, plan: Plan) -> SelfTestCase | None:
    """None, with a line, for a case that measured nothing."""
    try:
        return selftest.grade(case, rebuild(folder).analysis, plan)
    except ScalingError as error:
        print(f"scaling: {case.name}: {error}", file=sys.stderr)
        return None
