"""How a submitted run stands: its own files, and what Slurm says about its latest job.

Write into status.json how a job ended that Slurm ended before it could write so itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scaling.errors import ScalingError
from scaling.launchers.runner import earlier_launches
from scaling.launchers.slurm import queue
from scaling.launchers.slurm.queue import JobState, Submitted, ended_by_slurm, submitted
from scaling.reading import RefusedError, log_text, read_json
from scaling.records.files import write_json
from scaling.records.paths import RunFolder, is_own
from scaling.records.run import Status, read_status, status_of
from scaling.settings.plan import SETTLED, Plan


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
    jobs = submitted(folder)
    job = jobs[-1] if jobs else None
    state = queue.state_of(job.id) if job else None
    launches = earlier_launches(folder)
    progress: dict[str, Any] = {}
    if launches:
        with contextlib.suppress(OSError, RefusedError):
            content = read_json(folder.launch(launches[-1].index).progress)
            if isinstance(content, dict) and isinstance(content.get("left_s"), float | int | None):
                progress = content
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


Analyse = Callable[[RunFolder], object]
"""Makes everything that is derived from a run's records."""
FINAL = (*SETTLED, "oom", "failed")
"""States of a trial that the end of its job does not change."""
UNWRITABLE = 128 + 53
"""A job that Slurm ends so could not open its log: the node has no such folder (ExitCode=0:53)."""
_CUT_OFF = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "ran into its time limit",
    "DEADLINE": "ran into its deadline",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
}


def settle(stands: Standing, analyse: Analyse) -> Standing:
    """Add to status.json why the job ended, and analyse what was measured.

    A run whose job still waits or runs is left as it is. Nothing is written into another user's folder.
    """
    if stands.job is None or not stands.over:
        return stands
    vague = ended_by_slurm(stands.job.id)
    if not any(t.status in ("planned", "running") or t.error == vague for t in stands.status.trials):
        return stands
    state, why = _ended(stands, stands.job)
    status = status_of(stands.plan, earlier_launches(stands.folder))
    trials = tuple(t if t.status in FINAL else replace(t, status=state, error=why) for t in status.trials)
    launches = tuple(replace(run, error=why) if run.error == vague else run for run in status.launches)
    status = replace(status, state=state, trials=trials, launches=launches)
    if is_own(stands.folder):
        # A full disk, or a run without one measured block, is no error here.
        with contextlib.suppress(OSError, ScalingError):
            write_json(stands.folder.status, status)
            if status.launches:
                analyse(stands.folder)
    return replace(stands, status=status)


def _ended(stands: Standing, job: Submitted) -> tuple[str, str]:
    """(status of the trials, reason) for a job that has ended."""
    before = "" if stands.status.launches else " before anything was measured"
    log = stands.folder.job_log(job.id)
    if stands.state is None:
        return "lost", f"job {job.id} ended{before}, and Slurm no longer knows it{_last_line(log)}"
    state = stands.state
    if state.state in _CUT_OFF:
        return "interrupted", f"job {job.id} {_CUT_OFF[state.state]}{before}"
    if state.state in ("NODE_FAIL", "BOOT_FAIL"):
        return "lost", f"job {job.id} lost a node{before}: {state.state}, {state.nodes or 'no node named'}"
    if state.exit_code == UNWRITABLE and not log.is_file():
        return "failed", (
            f"job {job.id} ended{before}: {state.nodes or 'its node'} could not write {log}; put the run on a file "
            "system that the nodes share (run_dir)"
        )
    code = f", status {state.exit_code}" if state.exit_code else ""
    return "failed", f"job {job.id} ended{before}: {state.state}{code}{_last_line(log)}"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log_text(log).splitlines()]
    # job.sbatch prints "job ...".
    if lines := [line for line in lines if line and not line.startswith("job ")]:
        return f": {lines[-1][:300]} ({log})"
    return f"; its log would be {log}"
