"""`scaling submit`: submit one Slurm job for each run, and a small job that compares several runs afterwards."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from scaling.cli.measuring import analyse, end_in_order, print_report, require_alone, worst
from scaling.cli.output import say, warn
from scaling.cli.pipeline import read_analysis
from scaling.cli.simulated_run import refuse_simulated
from scaling.cli.verbs.arguments import split
from scaling.cli.verbs.status import job_line, launch_line
from scaling.config.compose import requests
from scaling.errors import InputError, ScalingError
from scaling.launchers.jobs import begun, jobs_of
from scaling.launchers.slurm import submit as slurm
from scaling.launchers.slurm.queue import Submitted, state_of
from scaling.launchers.slurm.script import check_script, limit_s, require_slurm, too_short
from scaling.launchers.slurm.submit import Standing, settle, standing
from scaling.launchers.tryout import needs_trying, try_model
from scaling.reading import log_text
from scaling.records.paths import RunFolder, require_own
from scaling.records.run import left
from scaling.report.text import count
from scaling.settings.plan import Plan
from scaling.units import format_duration

T = TypeVar("T")

POLL_S = 2.0
PATIENCE_S = 900
"""How long Slurm may be unreachable while a job is followed."""


def main(arguments: list[str]) -> int:
    """Submit the runs that the command line asks for; with --wait, follow them to their end and print their reports."""
    end_in_order()
    rest, given = split("submit", arguments)
    if given.resume is not None:
        require_alone("submit", arguments, alone=not rest and not given.dry_run)
        return _resume(Path(given.resume), wait=given.wait)
    refuse_simulated("submit", rest)
    launcher = [] if any(word.startswith("launcher=") for word in rest) else ["launcher=slurm"]
    asked = requests("submit", [*rest, *launcher])
    several = asked.multirun or any(item.spec.cluster.allocations > 1 for item in asked.items)
    apart = [
        (slurm.one_allocation(item), exclude) for item in asked.items for exclude in slurm.excluded(item.spec)
    ]
    jobs = jobs_of(tuple(item for item, _ in apart), multirun=several)
    texts = [slurm.script(job, exclude) for job, (_, exclude) in zip(jobs, apart, strict=True)]
    for line in dict.fromkeys(filter(None, (too_short(job.plan) for job in jobs))):
        warn(line)
    if given.dry_run:
        say(*"\n".join(texts).removesuffix("\n").split("\n"))
        return 0
    if not jobs:
        return 0
    require_slurm()
    compared = several and len(jobs) > 1
    comparing = [slurm.comparison_script(jobs[0].plan, [job.folder for job in jobs], [])] if compared else []
    for text in (*texts, *comparing):
        check_script(text)  # all of them before the first is submitted
    for job in jobs:
        # What is in an image cannot be tried from here.
        in_image = job.plan.spec.cluster.container.image is not None
        if needs_trying(job.plan.spec) and not in_image:
            try_model(job.plan)
    handed_in = []
    for job, text in zip(jobs, texts, strict=True):
        handed_in.append(slurm.submit(job, text))
        say(
            f"job {handed_in[-1].id}: {job.plan.spec.model.name} on {job.plan.spec.topology.name}, "
            f"{count(job.plan.hosts, 'node')}, at most {format_duration(limit_s(job.plan))}; "
            f"scaling status {job.folder.path}"
        )
    runs = [(job.plan, job.folder) for job in jobs]
    comparison = _compared(runs, handed_in) if compared else None
    return _follow(runs, comparison) if given.wait else 0


def _compared(runs: list[tuple[Plan, RunFolder]], handed_in: list[Submitted]) -> str | None:
    """Submit the job that compares the runs. None where Slurm refuses it; the other jobs are followed anyway."""
    into = runs[0][1].path.parent
    try:
        comparison = slurm.submit_comparison(
            runs[0][0], [folder for _, folder in runs], [job.id for job in handed_in]
        )
    except (ScalingError, OSError) as error:
        warn(f"{error}; run `scaling compare` when the jobs have ended")
        return None
    say(f"job {comparison}: compares them when they have ended, into {into}")
    return comparison


def _resume(path: Path, *, wait: bool) -> int:
    require_slurm()
    runs, handed_in = begun(path), []
    for plan, folder in runs:
        job = slurm.resubmit(require_own(folder), plan, analyse)
        if job is None:
            say(f"{folder.path}: nothing is left to measure")
        else:
            handed_in.append(job)
            say(f"job {job.id}: measures what is left of {folder.path}")
    comparison = _compared(runs, handed_in) if handed_in and len(runs) > 1 else None
    return _follow(runs, comparison) if wait else 0


def _follow(runs: list[tuple[Plan, RunFolder]], comparison: str | None) -> int:
    """Print changes until every job is over, then the reports. Ctrl-C stops this output, not the jobs."""
    try:
        ended = [_until_over(plan, folder) for plan, folder in runs]
    except KeyboardInterrupt:
        warn(f"no longer followed; the jobs go on: scaling status {runs[0][1].path}")
        return 3
    codes = [_report(stands) for stands in ended]
    if comparison is not None and _comparison(comparison, runs[0][1].path.parent):
        codes.append(1)
    return worst(codes)


def _until_over(plan: Plan, folder: RunFolder) -> Standing:
    printed: tuple[str, str] = ("", "")
    while True:
        stands = _patiently(lambda: standing(folder, plan))
        if stands.job is None:
            return stands
        progress = launch_line(stands)
        trials = ", ".join(f"{trial.world_size}: {trial.status}" for trial in stands.status.trials)
        # The time left changes at every poll; a line is printed only for a new state, stage or trial.
        state = str(stands.state and (stands.state.state, stands.ahead))
        worth = (state, progress.partition(",")[0] + trials)
        if worth != printed:
            printed = worth
            say("; ".join(filter(None, (job_line(stands), progress, f"ranks {trials}"))), file=sys.stderr)
        if stands.over:
            return settle(stands, analyse)
        time.sleep(POLL_S)


def _patiently(ask: Callable[[], T]) -> T:
    """Repeat a query while Slurm is unreachable: its controller restarts now and then, and jobs go on meanwhile."""
    begin = time.monotonic()
    while True:
        try:
            return ask()
        except InputError:
            raise
        except ScalingError as error:
            if time.monotonic() - begin > PATIENCE_S:
                raise
            warn(f"{error}; asking again")
            time.sleep(POLL_S * 5)


def _report(stands: Standing) -> int:
    """Print a run's report. Returns the exit status that `scaling run` would."""
    try:
        analysis = read_analysis(stands.folder)
    except ScalingError as error:
        warn(error)
        return 1
    print_report(stands.folder, analysis, stands.plan, verbose=False)
    return 0 if analysis.whole and not left(stands.plan, stands.status.launches) else 3


def _comparison(job: str, into: Path) -> int:
    """Print the output of the comparing job, and return its status."""
    while (state := _patiently(lambda: state_of(job))) is not None and not state.over:
        time.sleep(POLL_S)
    output = log_text(into / f"compare-{job}.out")
    if not output.strip():
        how = f" ({state.state}, status {state.exit_code})" if state is not None and state.exit_code else ""
        warn(f"job {job} left no comparison{how}; run `scaling compare` on the runs")
        return 1
    say(*output.removesuffix("\n").split("\n"))
    return 0 if state is None else int(bool(state.exit_code))
