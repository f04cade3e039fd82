"""Shared by verbs that measure: check a run before anything is written, watch it, analyse, report and log it.

Imports are made on the first call, since a plan does not need polars.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from scaling.cli.output import warn
from scaling.errors import InputError
from scaling.launchers.jobs import Job, launcher_of
from scaling.launchers.runner import measure
from scaling.launchers.tryout import promised
from scaling.records.launch import Environment, Launch
from scaling.records.paths import LaunchFolder, RunFolder
from scaling.records.run import Status
from scaling.settings.estimate import left_out_lines
from scaling.settings.plan import Plan

if TYPE_CHECKING:
    from scaling.analysis.results import Analysis, StepHistory


def preflight(launch: LaunchFolder, plan: Plan) -> tuple[str, ...]:
    """The problems found so far on the ranks of a launch, one line each."""
    from scaling.analysis.doctor import preflight as rules  # noqa: PLC0415

    return rules.problems(Launch(launch, plan))


def analyse(folder: RunFolder) -> None:
    """Write everything that is derived from a run's records."""
    from scaling.cli.pipeline import rebuild  # noqa: PLC0415

    rebuild(folder)


ENDING = (signal.SIGTERM, signal.SIGHUP)


def end_in_order() -> None:
    """Treat the first SIGTERM or SIGHUP like Ctrl-C and ignore later ones.

    Slurm signals both the harness and its script. A program that was started with nohup goes on after SIGHUP.
    """
    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _interrupt_once)


def _interrupt_once(number: int, _frame: object) -> None:
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def check(job: Job) -> Job:
    """Check everything that can be checked before anything is written, and time a step. InputError on a problem.

    The plan that comes back says how long the run takes, and what its budget leaves no time for.
    """
    launcher_of(job.plan).require(job.plan)
    return dataclasses.replace(job, plan=promised(job.plan))


def watch(plan: Plan, folder: RunFolder, *, rounds: bool = True) -> Status:
    """Measure and show the progress. `rounds`: whether the run measures in rounds, as `measure=` says."""
    from scaling.report.progress import watching  # noqa: PLC0415  rich.progress is slow to import

    with watching(plan, rounds=rounds) as progress:
        for line in left_out_lines(plan, plan.content):
            progress({"said": line})
        return measure(plan, folder, progress, preflight)


def why(status: Status) -> str:
    """The first error of an incomplete run, or its state if there is none."""
    return next((trial.error for trial in status.trials if trial.error), status.state)


def require_alone(verb: str, arguments: Sequence[str], *, alone: bool) -> None:
    """InputError where --resume RUN has overrides beside it."""
    if not alone:
        raise InputError(
            f"scaling {verb} {' '.join(arguments)}: --resume RUN is expected alone; "
            "the run's own plan says what is left"
        )


def worst(codes: Sequence[int]) -> int:
    """The exit status of several runs: 1 takes precedence, since that run measured nothing."""
    return max(codes, key=lambda code: (code == 1, code))


def print_report(folder: RunFolder, analysis: Analysis, plan: Plan, *, verbose: bool) -> None:
    """Print a run's answer in five lines, or its whole report, and the path of its page."""
    from scaling.report.documents.run import document  # noqa: PLC0415
    from scaling.report.terminal import draw  # noqa: PLC0415

    page = folder.report_html if folder.report_html.is_file() else None
    report = document(analysis, plan, report_path=page)
    draw(Console(), report, verbose=verbose or plan.spec.kind.by_cases)


def log_to_wandb(
    folder: RunFolder,
    plan: Plan,
    analysis: Analysis,
    histories: tuple[StepHistory, ...] = (),
    environment: Environment | None = None,
) -> None:
    """Log a run to W&B as its plan asks. A failure prints one line and does not end the program."""
    from scaling.report.tracking.wandb import log_run  # noqa: PLC0415  slow to import

    warning = log_run(folder, plan, analysis, histories, environment)
    if warning:
        warn(f"W&B: {warning}")
