"""Print the report of an analysed run, and log it to W&B."""

from __future__ import annotations

from rich.console import Console

from scaling.analysis.results import Analysis, StepHistory
from scaling.cli.output import warn
from scaling.records.launch import Environment
from scaling.records.paths import RunFolder
from scaling.report.terminal import print_analysis
from scaling.spec.plan import Plan


def print_report(
    folder: RunFolder, analysis: Analysis, plan: Plan, console: Console | None = None, *, verbose: bool
) -> None:
    """Print a run's answer in five lines, or its whole report, and the path of its page."""
    print_analysis(
        console or Console(),
        analysis,
        plan,
        report_path=folder.report_html,
        verbose=verbose or plan.spec.by_case,
    )


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
