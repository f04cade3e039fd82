"""`scaling cancel`: end a submitted run's job; what it measured stays."""

from __future__ import annotations

import time
from pathlib import Path

from scaling.errors import InputError
from scaling.launchers import queue
from scaling.run import begun
from scaling.submit import Standing, settle, standing
from scaling.verbs.arguments import parse
from scaling.verbs.status import lines

END_S = 120
"""The job gets Slurm's KillWait (30 s unless the site says otherwise) to end in order."""
POLL_S = 1.0


def main(arguments: list[str]) -> int:
    """Cancel the job of a run, or of each run of a multirun's folder, and say how they stand then."""
    paths, _ = parse("cancel", arguments, least=1, most=1)
    runs = [standing(folder.require_own(), plan) for plan, folder in begun(Path(paths[0]))]
    alive = [stands for stands in runs if not stands.over]
    if not alive:
        raise InputError(
            f"{paths[0]}: no job of it is waiting or running; `scaling status {paths[0]}` says more"
        )
    for stands in alive:
        assert stands.job is not None
        queue.cancel(stands.job.id)
    for stands in alive:
        print("\n".join(lines(settle(_until_over(stands)))))
    return 0


def _until_over(stands: Standing) -> Standing:
    end = time.monotonic() + END_S
    while not stands.over and time.monotonic() < end:
        time.sleep(POLL_S)
        stands = standing(stands.folder, stands.plan)
    return stands
