"""How a submitted run stands: its own files, and what Slurm says about its latest job."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from scaling.launchers.settle import earlier_launches
from scaling.launchers.slurm import queue
from scaling.launchers.slurm.queue import JobState
from scaling.launchers.slurm.submitted import Submitted, submitted
from scaling.reading import RefusedError, read_json
from scaling.records.paths import RunFolder
from scaling.records.run import read_status
from scaling.records.status import Status, status_of
from scaling.spec.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands."""

    plan: Plan
    folder: RunFolder
    status: Status
    job: Submitted | None
    state: JobState | None
    """None: Slurm no longer knows the job."""
    ahead: int | None
    """Jobs with a higher priority, while it waits."""
    progress: dict[str, Any]
    """The worker's latest progress record; empty where there is none."""

    @property
    def over(self) -> bool:
        """Whether no job of the run is waiting or running."""
        return self.job is None or self.state is None or self.state.over


def standing(folder: RunFolder, plan: Plan) -> Standing:
    """Combine status.json, Slurm's state and the worker's progress."""
    known = submitted(folder)
    job = known[-1] if known else None
    state = queue.state_of(job.id) if job else None
    launches = earlier_launches(folder)
    progress: dict[str, Any] = {}
    if launches:
        with contextlib.suppress(OSError, RefusedError):
            found = read_json(folder.launch(launches[-1].index).progress)
            if isinstance(found, dict) and isinstance(found.get("left_s"), float | int | None):
                progress = found
    waiting = job is not None and state is not None and state.state == "PENDING"
    return Standing(
        plan=plan,
        folder=folder,
        status=read_status(folder) or status_of(plan, []),
        job=job,
        state=state,
        ahead=queue.waiting_ahead(job.id, job.partition) if waiting and job else None,
        progress=progress,
    )
