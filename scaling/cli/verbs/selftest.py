"""`scaling selftest`: inject known causes, check whether the verdicts find them, and print the hit rate."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console

from scaling.analysis.results import SelfTestCase
from scaling.analysis.selftest.grade import CASES, MORE, FaultCase, drawn, grade, summary
from scaling.cli.measuring import end_in_order, watch
from scaling.cli.output import print_json, say, warn
from scaling.cli.pipeline import rebuild
from scaling.cli.verbs.arguments import split
from scaling.config.compose import requests
from scaling.errors import ScalingError
from scaling.launchers.jobs import Job, check_folder, create, plan_request
from scaling.records.files import write_json
from scaling.records.paths import RunFolder, default_folder
from scaling.report.documents.checkup import case_lines, selftest_document
from scaling.report.terminal import draw
from scaling.settings.plan import Plan, Request
from scaling.units import format_duration

DRAWN = 8
"""Cases of real models in `--full`: a control and seven of the ten faults. With them it stays below ten minutes."""


def main(arguments: list[str]) -> int:
    """Exit status 0 when every fault is found, with its share and no other cause; 3 when interrupted; else 1."""
    end_in_order()
    overrides, given = split("selftest", arguments)
    first = planned(CASES[0], overrides)
    if first is None:
        return 0  # help was asked for
    others = [*CASES[1:]]
    if given.full:
        others += [*MORE, *drawn(DRAWN, first.plan.spec.seed)]
    runs = [first, *(run for case in others if (run := planned(case, overrides)) is not None)]
    parent = RunFolder(first.request.run_dir or default_folder(first.plan.id))
    folders = [check_folder(parent.path / f"{k:02}") for k in range(len(runs))]
    check_folder(parent.path)
    graded, interrupted = _graded(runs, folders, sys.stderr if given.json else sys.stdout)
    whole = summary(graded, len(runs))
    write_json(parent.path / "selftest.json", whole)
    if given.json:
        print_json(whole)
    draw(Console(stderr=given.json), selftest_document(whole, parent.path))
    return 3 if interrupted else int(not whole.passed)


def _graded(
    runs: Sequence[CaseRun], folders: Sequence[RunFolder], file: TextIO
) -> tuple[list[SelfTestCase], bool]:
    """Run one case after the other and print each as it ends; also whether the user interrupted."""
    graded: list[SelfTestCase] = []
    begin = time.monotonic()
    for index, (run, folder) in enumerate(zip(runs, folders, strict=True)):
        each_s = (time.monotonic() - begin) / index if index else 0.0
        left = f"; about {format_duration(each_s * (len(runs) - index))} left" if index else ""
        say(f"# case {index + 1} of {len(runs)}: {run.case.name}{left}", file=sys.stderr)
        case, interrupted = run_case(run, folder)
        if interrupted:
            return graded, True
        if case is not None:
            graded.append(case)
            say(*case_lines(case), file=file)
    return graded, False


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """A case that is ready to run."""

    case: FaultCase
    request: Request
    plan: Plan


def planned(case: FaultCase, overrides: list[str]) -> CaseRun | None:
    """The case with overrides that win over its own; None where only help was asked for. InputError for a bad one."""
    asked = requests("selftest", [*case.settings, *overrides])
    if not asked.items:
        return None
    return CaseRun(case=case, request=asked.items[0], plan=plan_request(asked.items[0]))


def run_case(run: CaseRun, folder: RunFolder) -> tuple[SelfTestCase | None, bool]:
    """(the graded case, whether the user interrupted it). A case that measured nothing is None, after a line why."""
    create(Job(request=run.request, plan=run.plan, folder=check_folder(folder.path)))
    if watch(run.plan, folder).state == "interrupted":
        return None, True
    return graded(run.case, folder, run.plan), False


def graded(case: FaultCase, folder: RunFolder, plan: Plan) -> SelfTestCase | None:
    """Analyse a case's run anew and grade it; None, after a line, if it measured nothing."""
    try:
        return grade(case, rebuild(folder).analysis, plan)
    except ScalingError as error:
        warn(f"{case.name}: {error}")
        return None
