"""`scaling submit`: one Slurm job a run; several are compared by a small job that waits for them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from scaling.config import requests
from scaling.errors import InputError, ScalingError
from scaling.launchers import queue
from scaling.launchers.sbatch import limit_s
from scaling.plan import Plan
from scaling.rebuild import read_analysis
from scaling.report.queue import job_line, progress_line
from scaling.report.terminal import print_analysis
from scaling.run import Job, begun, jobs_of
from scaling.status import left
from scaling.store import RunFolder
from scaling.submit import (
    Standing,
    Submitted,
    comparison_script,
    resubmit,
    script,
    settle,
    standing,
    submit,
    submit_comparison,
)
from scaling.tryout import needs_trying, try_model
from scaling.units import format_duration
from scaling.verbs.arguments import split

T = TypeVar("T")

POLL_S = 2.0
PATIENCE_S = 900
"""Slurm may be away for so long while a job is followed."""


def main(arguments: list[str]) -> int:
    """Hand in what the command line asks for; with --wait, follow it to its end and print its reports."""
    rest, options = split("submit", arguments)
    dry, wait = "--dry-run" in options, "--wait" in options
    if "--resume" in options:
        if rest or dry:
            raise InputError(
                f"scaling submit {' '.join(arguments)}: --resume RUN is expected alone; "
                "the run's own plan says what is left"
            )
        return _resume(Path(options["--resume"]), wait=wait)
    launcher = [] if any(word.startswith("launcher=") for word in rest) else ["launcher=slurm"]
    asked = requests("submit", [*rest, *launcher])
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    texts = [script(job) for job in jobs]
    if dry:
        print("\n".join(texts), end="")
        return 0
    if not jobs:
        return 0
    queue.require_slurm()
    compared = asked.multirun and len(jobs) > 1
    for text in (*texts, *([comparison_script(jobs, [])] if compared else [])):
        queue.check_script(text)  # all of them before the first is handed in
    for job in jobs:
        in_image = job.plan.spec.cluster.container.image is not None  # nothing in it can be tried from here
        if needs_trying(job.plan.spec) and not in_image:
            try_model(job.plan)
    handed_in = []
    for job, text in zip(jobs, texts, strict=True):
        handed_in.append(submit(job, text))
        print(
            f"job {handed_in[-1].id}: {job.plan.spec.model.name} on {job.plan.spec.topology.name}, "
            f"{job.plan.hosts} nodes, at most {format_duration(limit_s(job.plan))}; "
            f"scaling status {job.folder.path}"
        )
    comparison = _compared(jobs, handed_in) if compared else None
    return _follow([(job.plan, job.folder) for job in jobs], comparison) if wait else 0


def _compared(jobs: list[Job], handed_in: list[Submitted]) -> str | None:
    """The job that compares them; None where Slurm does not take it, which is no reason to lose sight of the others."""
    into = jobs[0].folder.path.parent
    try:
        comparison = submit_comparison(jobs, handed_in)
    except (ScalingError, OSError) as error:
        print(f"scaling: {error}; `scaling compare` does it when they have ended", file=sys.stderr)
        return None
    print(f"job {comparison}: compares them when they have ended, into {into}")
    return comparison


def _resume(path: Path, *, wait: bool) -> int:
    queue.require_slurm()
    runs = begun(path)
    for plan, folder in runs:
        handed_in = resubmit(folder.require_own(), plan)
        if handed_in is None:
            print(f"{folder.path}: nothing is left to measure")
        else:
            print(f"job {handed_in.id}: what is left of {folder.path}")
    return _follow(runs, None) if wait else 0


def _follow(runs: list[tuple[Plan, RunFolder]], comparison: str | None) -> int:
    """Say what changes until every job is over, then print the reports. Ctrl-C stops the following, not the jobs."""
    try:
        ended = [_until_over(plan, folder) for plan, folder in runs]
    except KeyboardInterrupt:
        print(
            f"scaling: no longer followed; the jobs go on: scaling status {runs[0][1].path}",
            file=sys.stderr,
        )
        return 3
    codes = [_report(stands) for stands in ended]
    if comparison is not None and _comparison(comparison, runs[0][1].path.parent):
        codes.append(1)
    return max(codes, key=lambda code: (code == 1, code))


def _until_over(plan: Plan, folder: RunFolder) -> Standing:
    said: tuple[str, str] = ("", "")
    while True:
        stands = _patiently(lambda: standing(folder, plan))
        if stands.job is None:
            return stands
        running = any(trial.status == "running" for trial in stands.status.trials)
        progress = progress_line(stands.progress, len(stands.status.launches)) if running else ""
        trials = ", ".join(f"{trial.world_size}: {trial.status}" for trial in stands.status.trials)
        # The time left changes with every look; what is worth a line is the state, the stage and the trials.
        worth = (
            str(stands.state and (stands.state.state, stands.ahead)),
            progress.partition(",")[0] + trials,
        )
        if worth != said:
            said = worth
            line = job_line(stands.job.id, stands.state, stands.ahead)
            print("; ".join(x for x in (line, progress, f"ranks {trials}") if x), file=sys.stderr, flush=True)
        if stands.over:
            return settle(stands)
        time.sleep(POLL_S)


def _patiently(ask: Callable[[], T]) -> T:
    """What Slurm says, asked again for a while: the controller restarts now and then, and the jobs do not mind."""
    begin = time.monotonic()
    while True:
        try:
            return ask()
        except InputError:
            raise
        except ScalingError as error:
            if time.monotonic() - begin > PATIENCE_S:
                raise
            print(f"scaling: {error}; asking again", file=sys.stderr, flush=True)
            time.sleep(POLL_S * 5)


def _report(stands: Standing) -> int:
    """Print a run's report; the exit status is that of `scaling run`."""
    try:
        analysis = read_analysis(stands.folder)
    except ScalingError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    print_analysis(Console(), analysis, stands.plan, report_path=stands.folder.report_html)
    return 0 if analysis.whole and not left(stands.plan, stands.status.launches) else 3


def _comparison(job: str, into: Path) -> int:
    """Print what the comparing job printed; its status."""
    while True:
        state = _patiently(lambda: queue.state_of(job))
        if state is None or state.over:
            break
        time.sleep(POLL_S)
    log = into / f"compare-{job}.out"
    if not log.is_file():
        print(f"scaling: job {job} left no comparison; scaling compare does it again", file=sys.stderr)
        return 1
    print(log.read_text(encoding="utf-8"), end="")
    return 0 if state is None else int(bool(state.exit_code))
