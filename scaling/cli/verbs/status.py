"""`scaling status`, `cancel` and `sync`: what became of a submitted run, its end, and its offline W&B runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from scaling.cli.measuring import analyse
from scaling.cli.output import say
from scaling.cli.verbs.arguments import parse
from scaling.errors import InputError, ScalingError
from scaling.launchers.jobs import begun
from scaling.launchers.slurm import queue
from scaling.launchers.slurm.submit import Standing, settle, standing
from scaling.records.paths import RunFolder, find_run, named, require_own
from scaling.units import format_duration


def job_line(stands: Standing) -> str:
    """The job's state as Slurm names it, with the reason that it waits, or the nodes that it runs on."""
    if stands.job is None:
        return "no job was submitted for it"
    job, state = f"job {stands.job.id}", stands.state
    if state is None:
        return f"{job}: over; Slurm no longer lists it"
    words = []
    if state.state == "PENDING":
        words.append(f"({state.reason or 'no reason given yet'})")
        if stands.ahead is not None:
            words.append(f"{stands.ahead} ahead of it" if stands.ahead else "next of its partition")
        if state.start:
            words.append(f"expected to start {state.start}")
    elif state.nodes:
        words.append(f"on {state.nodes}")
    if state.left and not state.over and state.state != "PENDING":
        words.append(f"time limit in {state.left}")
    if state.over and state.exit_code:
        words.append(f"with status {state.exit_code}")
    return " ".join(filter(None, (f"{job}: {state.state}", ", ".join(words))))


def launch_line(stands: Standing) -> str:
    """Progress of the running launch; empty where none runs or its progress is not known."""
    progress, status = stands.progress, stands.status
    if not progress or not any(trial.status == "running" for trial in status.trials):
        return ""
    left = progress.get("left_s")
    until = "" if left is None else f", {format_duration(float(left))} left"
    return f"launch {max(len(status.launches) - 1, 0)}: {progress.get('stage', '')}{until}"


def main(arguments: list[str]) -> int:
    """Print the state of a run, or of each run of a multirun's folder. The exit status is 0."""
    paths, _ = parse("status", arguments)
    for plan, folder in begun(Path(paths[0])):
        say(*lines(settle(standing(folder, plan), analyse)))
    return 0


def lines(stands: Standing) -> Iterator[str]:
    """The state of a run: its job, its launch, and one line a trial."""
    yield f"# {stands.folder.path}: {stands.plan.spec.model.name} on {stands.plan.spec.topology.name}"
    yield job_line(stands)
    log = stands.folder.job_log(stands.job.id) if stands.job else None
    if log and log.is_file():
        yield f"log: {log}"
    if progress := launch_line(stands):
        yield progress
    yield "#ranks  trial       in launch  error"
    for trial in stands.status.trials:
        measured = ",".join(map(str, trial.launches)) or "-"
        yield f"{trial.world_size:>6}  {trial.status:<11} {measured:>9}  {trial.error or ''}".rstrip()


END_S = 120
"""Longest wait for the job to end. Slurm gives it KillWait (30 s unless the site sets it) to shut down."""
POLL_S = 1.0


def cancel(arguments: list[str]) -> int:
    """Cancel the job of a run, or of each run of a multirun's folder, and print their state."""
    paths, _ = parse("cancel", arguments)
    runs = [standing(require_own(folder), plan) for plan, folder in begun(Path(paths[0]))]
    alive = [stands for stands in runs if not stands.over]
    if not alive:
        raise InputError(
            f"{paths[0]}: no job of it is waiting or running; `scaling status {paths[0]}` says more"
        )
    refused: list[ScalingError] = []
    for stands in alive:
        assert stands.job is not None
        try:
            queue.cancel(stands.job.id)
        except ScalingError as error:  # it may have ended since; the others are cancelled all the same
            refused.append(error)
    for stands in alive:
        say(*lines(settle(_until_over(stands), analyse)))
    if refused and not all(standing(stands.folder, stands.plan).over for stands in alive):
        raise refused[0]
    return 0


def _until_over(stands: Standing) -> Standing:
    end = time.monotonic() + END_S
    while not stands.over and time.monotonic() < end:
        time.sleep(POLL_S)
        stands = standing(stands.folder, stands.plan)
    return stands


def sync(arguments: list[str]) -> int:
    """Upload, and print what was uploaded."""
    paths, _ = parse("sync", arguments)
    folder = RunFolder(named(paths[0]))
    folder = folder if folder.comparison.is_file() else find_run(paths[0])
    from scaling.report.tracking.sync import sync as upload  # noqa: PLC0415  wandb is slow to import

    say(upload(require_own(folder, *(folder.wandb / "wandb").rglob("*"))))
    return 0
