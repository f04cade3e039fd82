"""Run one case of the self-test and grade it."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results import SelfTestCase
from scaling.analysis.selftest.grade import FaultCase, grade
from scaling.cli.measuring import watch
from scaling.cli.output import warn
from scaling.cli.pipeline import rebuild
from scaling.config.compose import requests
from scaling.errors import ScalingError
from scaling.launchers.jobs import check_folder, create, plan_request
from scaling.records.paths import RunFolder
from scaling.settings.plan import Plan, Request


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
    create(run.request, run.plan, check_folder(folder.path))
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
