"""`scaling selftest`: inject known causes, check whether the verdicts find them, and print the hit rate."""

from __future__ import annotations

from rich.console import Console

from scaling.analysis.results import SelfTestCase
from scaling.analysis.verdicts import selftest
from scaling.cli.measuring import end_in_order, watch
from scaling.cli.output import print_json, warn
from scaling.cli.pipeline import rebuild
from scaling.cli.verbs.arguments import split
from scaling.config.compose import requests
from scaling.errors import ScalingError
from scaling.launchers.jobs import check_folder, create, plan_request
from scaling.records.files import write_json
from scaling.records.paths import RunFolder, default_folder
from scaling.report.terminal import print_case, print_selftest
from scaling.spec.plan import Plan


def main(arguments: list[str]) -> int:
    """Exit status 0 when every fault is found, with its share and no other cause; 3 when interrupted; else 1."""
    end_in_order()
    overrides, given = split("selftest", arguments)
    cases = [c for c in selftest.CASES if given.full or not c.full]
    asked = []
    for case in cases:
        asked.append(requests("selftest", [*selftest.overrides(case), *overrides]))
        if not asked[-1].items:
            return 0  # help was asked for
    plans = [plan_request(a.items[0]) for a in asked]
    parent = RunFolder(asked[0].items[0].run_dir or default_folder(plans[0].id))
    folders = [check_folder(parent.path / f"{k:02}") for k in range(len(cases))]
    check_folder(parent.path)
    console = Console(stderr=given.json)
    graded: list[SelfTestCase] = []
    interrupted = False
    for case, request, plan, folder in zip(cases, asked, plans, folders, strict=True):
        create(request.items[0], plan, folder)
        interrupted = watch(plan, folder).state == "interrupted"
        if interrupted:
            break
        found = _graded(case, folder, plan)
        if found is not None:
            graded.append(found)
            print_case(console, found)
    whole = selftest.summary(graded, len(cases))
    write_json(parent.path / "selftest.json", whole)
    if given.json:
        print_json(whole)
    print_selftest(console, whole, parent.path)
    return 3 if interrupted else int(not whole.passed)


def _graded(case: selftest.FaultCase, folder: RunFolder, plan: Plan) -> SelfTestCase | None:
    """Grade a case. If it measured nothing, print a line and return None."""
    try:
        return selftest.grade(case, rebuild(folder).analysis, plan)
    except ScalingError as error:
        warn(f"{case.name}: {error}")
        return None
