"""A run as a Slurm job: write its script, hand it in, see how it stands, and put down what it could not say itself."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scaling import resources
from scaling.errors import InputError, ScalingError
from scaling.files import read_json, write_json, write_text
from scaling.launchers import queue
from scaling.launchers.queue import JobState
from scaling.launchers.sbatch import compare_script, job_script
from scaling.launchers.slurm import ended_by_slurm
from scaling.plan import Plan
from scaling.run import Job, create, earlier_launches
from scaling.status import SCHEMA as STATUS_SCHEMA
from scaling.status import Status, left, status_of
from scaling.store import RunFolder

SCHEMA = 1
FINAL = ("done", "oom", "failed")
"""Trials that a job's end changes nothing about."""
_CUT_OFF = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "ran into its time limit",
    "DEADLINE": "ran into its deadline",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """One job that was handed in for a run."""

    id: str
    at: str
    partition: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """jobs.json: the jobs of a run, the latest last."""

    schema: int
    jobs: tuple[Submitted, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a run stands: what its own files say, and what Slurm says of its latest job."""

    plan: Plan
    folder: RunFolder
    status: Status
    job: Submitted | None
    state: JobState | None
    """None: Slurm knows the job no more."""
    ahead: int | None
    progress: dict[str, Any]
    """The worker's last word; empty where there is none."""

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.job is None or self.state is None or self.state.over


def script(job: Job) -> str:
    """What is handed to Slurm for a run. InputError where it cannot be."""
    if job.plan.spec.launcher != "slurm":
        raise InputError(f"launcher={job.plan.spec.launcher}: it needs no Slurm; use `scaling run`")
    template = (resources.folder("slurm") / "job.sbatch").read_text(encoding="utf-8")
    return job_script(
        template,
        job.plan,
        job.folder,
        python=sys.executable,
        cwd=Path.cwd(),
        root=resources.import_root(),
    )


def submit(job: Job, text: str) -> Submitted:
    """Make the run's folder and hand its job in; where Slurm refuses, the folder goes again.

    It stays after any other failure: a job that Slurm has taken all the same runs in it.
    """
    existed = job.folder.path.exists()
    create(job.request, job.plan, job.folder)
    try:
        _write_down(job, text)
        return _hand_in(job.plan, job.folder, text)
    except (InputError, OSError):
        if not existed:
            shutil.rmtree(job.folder.path)
        raise


def _write_down(job: Job, text: str) -> None:
    """What is there before Slurm is asked."""
    try:
        write_json(job.folder.status, status_of(job.plan, []))
        write_text(job.folder.job_script, text)
    except OSError as error:  # a full disk
        raise InputError(f"{job.folder.path}: cannot be written ({error.strerror}); make room") from error


def resubmit(folder: RunFolder, plan: Plan) -> Submitted | None:
    """Hand a run's own script in again; None where nothing is left. InputError while its job is not over."""
    stands = standing(folder, plan)
    if not stands.over and stands.job is not None:
        raise InputError(
            f"{folder.path}: its job {stands.job.id} is not over; wait for it, or `scaling cancel {folder.path}`"
        )
    settle(stands)
    if not left(plan, stands.status.launches, len(stands.status.launches)):
        return None
    if not folder.job_script.is_file():
        raise InputError(
            f"{folder.path}: no job.sbatch; `scaling run --resume {folder.path}` goes on with it here"
        )
    text = folder.job_script.read_text(encoding="utf-8")
    queue.check_script(text)
    return _hand_in(plan, folder, text)


def comparison_script(jobs: list[Job], handed_in: list[Submitted]) -> str:
    """The dependent job that compares the runs."""
    return compare_script(
        (resources.folder("slurm") / "compare.sbatch").read_text(encoding="utf-8"),
        jobs[0].plan,
        [job.folder for job in jobs],
        jobs[0].folder.path.parent,
        [one.id for one in handed_in],
        python=sys.executable,
        root=resources.import_root(),
    )


def submit_comparison(jobs: list[Job], handed_in: list[Submitted]) -> str:
    """Hand the comparing job in; its id."""
    text = comparison_script(jobs, handed_in)
    write_text(jobs[0].folder.path.parent / "compare.sbatch", text)
    return queue.hand_in(text)


def standing(folder: RunFolder, plan: Plan) -> Standing:
    """Ask everybody who knows."""
    known = read_json(folder.jobs, Jobs, SCHEMA).jobs if folder.jobs.is_file() else ()
    job = known[-1] if known else None
    state = queue.state_of(job.id) if job else None
    launches = earlier_launches(folder)
    progress: dict[str, Any] = {}
    if launches:
        with contextlib.suppress(OSError, ValueError):
            progress = json.loads(folder.launch(launches[-1].index).progress.read_text(encoding="utf-8"))
    waiting = job is not None and state is not None and state.state == "PENDING"
    return Standing(
        plan=plan,
        folder=folder,
        status=_read_status(folder, plan),
        job=job,
        state=state,
        ahead=queue.waiting_ahead(job.id, job.partition) if waiting and job else None,
        progress=progress,
    )


def settle(stands: Standing) -> Standing:
    """Put into status.json how a job ended that could not say so itself, and analyse what it left.

    A run with a living job is left alone, and of somebody else's nothing is written.
    """
    if stands.job is None or not stands.over:
        return stands
    vague = ended_by_slurm(stands.job.id)
    if not any(t.status in ("planned", "running") or t.error == vague for t in stands.status.trials):
        return stands
    state, why = _ended(stands, stands.job)
    status = status_of(stands.plan, earlier_launches(stands.folder))
    trials = tuple(
        t if t.status in FINAL else dataclasses.replace(t, status=state, error=why) for t in status.trials
    )
    launches = tuple(
        dataclasses.replace(one, error=why) if one.error == vague else one for one in status.launches
    )
    status = dataclasses.replace(status, state=state, trials=trials, launches=launches)
    if stands.folder.is_own():
        _keep(stands.folder, status)
    return dataclasses.replace(stands, status=status)


def _keep(folder: RunFolder, status: Status) -> None:
    """Write down how it ended, and analyse what it left, where there is room to."""
    with contextlib.suppress(OSError, ScalingError):  # a full disk; not one block was measured
        write_json(folder.status, status)
        if status.launches:
            from scaling.rebuild import rebuild  # noqa: PLC0415  # heavy, and seldom needed here

            rebuild(folder)


def _ended(stands: Standing, job: Submitted) -> tuple[str, str]:
    """(trials' status, in words) of a job that is over."""
    before = "" if stands.status.launches else " before anything was measured"
    log = stands.folder.job_log(job.id)
    if stands.state is None:
        return "lost", f"job {job.id} ended{before}, and Slurm knows it no more{_last_words(log)}"
    state = stands.state
    if state.state in _CUT_OFF:
        return "interrupted", f"job {job.id} {_CUT_OFF[state.state]}{before}"
    if state.state in ("NODE_FAIL", "BOOT_FAIL"):
        return "lost", f"job {job.id} lost a node{before}: {state.state}, {state.nodes or 'no node named'}"
    code = f", status {state.exit_code}" if state.exit_code else ""
    return "failed", f"job {job.id} ended{before}: {state.state}{code}{_last_words(log)}"


def _last_words(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = [
            x.strip() for x in log.read_text(encoding="utf-8", errors="replace").splitlines() if x.strip()
        ]
        said = [x for x in lines if not x.startswith("job ")]  # job.sbatch's own first and last line
        if said:
            return f": {said[-1][:300]} ({log})"
    return f"; its log would be {log}"


def _read_status(folder: RunFolder, plan: Plan) -> Status:
    with contextlib.suppress(ScalingError):
        return read_json(folder.status, Status, STATUS_SCHEMA)
    return status_of(plan, [])


def _hand_in(plan: Plan, folder: RunFolder, text: str) -> Submitted:
    """Hand a job in and note it. InputError where none is queued then, any other error where one may be."""
    known = read_json(folder.jobs, Jobs, SCHEMA).jobs if folder.jobs.is_file() else ()
    try:
        number = queue.hand_in(text)
    except KeyboardInterrupt:
        print(
            f"scaling: {folder.path}: its job may be queued all the same: squeue --me tells", file=sys.stderr
        )
        raise
    job = Submitted(
        id=number,
        at=dt.datetime.now(tz=dt.timezone.utc).astimezone().isoformat(timespec="seconds"),
        partition=plan.spec.cluster.partition,
    )
    try:
        write_json(folder.jobs, Jobs(schema=SCHEMA, jobs=(*known, job)))
    except BaseException as error:  # a full disk, Ctrl-C: nobody would know of the job
        _withdraw(job.id, folder)
        if isinstance(error, OSError):
            raise InputError(
                f"{folder.jobs}: cannot be written ({error.strerror}), so job {job.id} was cancelled; make room"
            ) from error
        raise
    return job


def _withdraw(job: str, folder: RunFolder) -> None:
    """Cancel a job that could not be noted."""
    try:
        queue.cancel(job)
    except ScalingError as error:
        raise ScalingError(
            f"job {job} is queued, and {folder.jobs} could not be written to say so; scancel {job} ends it ({error})"
        ) from error
