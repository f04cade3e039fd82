"""`scaling cancel`: end a submitted run's job and keep what it measured."""

from __future__ import annotations

import time
from pathlib import Path

from scaling.cli.measuring import analyse
from scaling.cli.output import say
from scaling.cli.verbs.arguments import parse
from scaling.cli.verbs.status import lines
from scaling.errors import InputError
from scaling.launchers.jobs import begun
from scaling.launchers.slurm import queue
from scaling.launchers.slurm.job_status import Standing, settle, standing
from scaling.records.paths import require_own

END_S = 120
"""Longest wait for the job to end. Slurm gives it KillWait (30 s unless the site sets it) to shut down."""
POLL_S = 1.0


def main(arguments: list[str]) -> int:
    """Cancel the job of a run, or of each run of a multirun's folder, and print their state."""
    paths, _ = parse("cancel", arguments)
    runs = [standing(require_own(folder), plan) for plan, folder in begun(Path(paths[0]))]
    alive = [stands for stands in runs if not stands.over]
    if not alive:
        raise InputError(
            f"{paths[0]}: no job of it is waiting or running; `scaling status {paths[0]}` says more"
        )
    for stands in alive:
        assert stands.job is not None
        queue.cancel(stands.job.id)
    for stands in alive:
        say(*lines(settle(_until_over(stands), analyse)))
    return 0


def _until_over(stands: Standing) -> Standing:
    end = time.monotonic() + END_S
    while not stands.over and time.monotonic() < end:
        time.sleep(POLL_S)
        stands = standing(stands.folder, stands.plan)
    return stands
