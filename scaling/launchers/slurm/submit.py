"""Submit a run as a Slurm job: write its script, hand it to Slurm, and note the job in jobs.json; tell how it stands.

Each allocation of one run gets nodes of its own: a partition's nodes are dealt out before the jobs are submitted. Each
job excludes the other jobs' nodes, so that they need not wait for each other, and a job that starts again stays on its
own. Which nodes of its share a job gets is Slurm's choice.

How a job ended that Slurm ended before it could write so itself is written into status.json.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scaling import resources
from scaling.errors import InputError, ScalingError, way_out, while_reading
from scaling.launchers.jobs import Job, create
from scaling.launchers.runner import earlier_launches
from scaling.launchers.slurm import queue
from scaling.launchers.slurm import script as sbatch
from scaling.launchers.slurm.queue import Jobs, JobState, Submitted, gets_jobs, run, submitted
from scaling.plain import tell
from scaling.reading import RefusedError, log_text, read_json, read_text
from scaling.records.files import write_json, write_text
from scaling.records.paths import RunFolder, is_own
from scaling.records.run import Status, left, read_status, status_of
from scaling.settings.plan import SETTLED, Plan, Request
from scaling.settings.run import Spec
from scaling.units import hostlist

Analyse = Callable[[RunFolder], object]
"""Makes everything that is derived from a run's records."""


def script(job: Job, exclude: str = "") -> str:
    """The script of a run's job, which leaves out some nodes. InputError where the run does not use Slurm."""
    if job.plan.spec.launcher != "slurm":
        raise InputError(f"launcher={job.plan.spec.launcher}: runs without Slurm; use `scaling run`")
    template = (resources.folder("slurm") / "job.sbatch").read_text(encoding="utf-8")
    plan, run, here, root = job.plan, job.folder, Path.cwd(), resources.import_root()
    return sbatch.job_script(template, plan, run, python=sys.executable, cwd=here, root=root, exclude=exclude)


def submit(job: Job, text: str) -> Submitted:
    """Make the run's folder and submit its job; the folder is removed again where Slurm refuses.

    It stays after any other failure, since Slurm may have taken the job.
    """
    existed = job.folder.path.exists()
    create(job)
    try:
        _write_down(job, text)
        return _hand_in(job.plan, job.folder, text)
    except (InputError, OSError):
        if not existed:
            shutil.rmtree(job.folder.path)
        raise


def resubmit(folder: RunFolder, plan: Plan, analyse: Analyse) -> Submitted | None:
    """Submit a run's own script again; None where nothing is left. InputError while its job is not over."""
    stands = standing(folder, plan)
    if not stands.over and stands.job is not None:
        raise InputError(
            f"{folder.path}: its job {stands.job.id} is not over; wait for it, or `scaling cancel {folder.path}`"
        )
    settle(stands, analyse)
    if not left(plan, stands.status.launches, len(stands.status.launches)):
        return None
    if not folder.job_script.is_file():
        raise InputError(
            f"{folder.path}: no job.sbatch; `scaling run --resume {folder.path}` goes on with it here"
        )
    with while_reading(folder.job_script, "it should be the script that `scaling submit` wrote"):
        text = read_text(folder.job_script)
    sbatch.check_script(text)
    return _hand_in(plan, folder, text)


def comparison_script(plan: Plan, folders: Sequence[RunFolder], after: Sequence[str]) -> str:
    """The job that compares runs of a multirun when the jobs `after` have ended; `plan`: of one of the runs."""
    template = (resources.folder("slurm") / "compare.sbatch").read_text(encoding="utf-8")
    into, root = folders[0].path.parent, resources.import_root()
    return sbatch.compare_script(
        template, plan, list(folders), into, list(after), python=sys.executable, root=root
    )


def submit_comparison(plan: Plan, folders: Sequence[RunFolder], after: Sequence[str]) -> str:
    """Submit the comparing job and return its id."""
    text = comparison_script(plan, folders, after)
    write_text(folders[0].path.parent / "compare.sbatch", text)
    return sbatch.hand_in(text)


def _write_down(job: Job, text: str) -> None:
    """Write status.json and the script, before Slurm is asked."""
    try:
        write_json(job.folder.status, status_of(job.plan, []))
        write_text(job.folder.job_script, text)
    except OSError as error:  # a full disk
        raise InputError(
            f"{job.folder.path}: cannot be written ({error.strerror}); {way_out(error)}"
        ) from error


def _hand_in(plan: Plan, folder: RunFolder, text: str) -> Submitted:
    """Submit a job and note it. InputError where none is queued; with any other error one may be."""
    earlier = submitted(folder)
    try:
        number = sbatch.hand_in(text)
    except KeyboardInterrupt:
        tell(f"{folder.path}: its job may be queued all the same; check with `squeue --me`")
        raise
    job = Submitted(
        id=number,
        at=dt.datetime.now(tz=dt.timezone.utc).astimezone().isoformat(timespec="seconds"),
        partition=plan.spec.cluster.partition,
    )
    try:
        write_json(folder.jobs, Jobs(schema=queue.SCHEMA, jobs=(*earlier, job)))
    except BaseException as error:
        # A full disk, or Ctrl-C: without jobs.json the job could not be found again.
        _withdraw(job.id, folder)
        if isinstance(error, OSError):
            raise InputError(
                f"{folder.jobs}: cannot be written ({error.strerror}), so job {job.id} was cancelled; "
                f"{way_out(error)}"
            ) from error
        raise
    return job


def _withdraw(job: str, folder: RunFolder) -> None:
    """Cancel a job that could not be noted."""
    try:
        queue.cancel(job)
    except ScalingError as error:
        raise ScalingError(
            f"job {job} is queued, but {folder.jobs} could not be written; end it with `scancel {job}` ({error})"
        ) from error


KEY = "cluster.allocations"


def excluded(spec: Spec) -> list[str]:
    """`--exclude` of each allocation of a run; one empty text for a run that asks for one allocation.

    InputError where the partition has too few nodes that get jobs.
    """
    cluster = spec.cluster
    if cluster.allocations == 1:
        return [""]
    if "nodelist" in cluster.sbatch:
        raise InputError(
            f"{KEY}={cluster.allocations}: chooses nodes itself; leave cluster.sbatch.nodelist out, or name nodes in "
            "cluster.sbatch.exclude that are not to be used"
        )
    theirs = queue.hostnames(cluster.sbatch.get("exclude", ""))
    where = [] if cluster.partition is None else [f"--partition={cluster.partition}"]
    listed = run("sinfo", "--noheader", "--Node", *where, "--format=%N %t %P")
    if listed.returncode:
        raise ScalingError(f"sinfo: {listed.stderr.strip()}")
    nodes = nodes_of(listed.stdout, default=cluster.partition is None)
    hosts = max(spec.topology.hosts_of(n) for n in spec.world_sizes)
    usable = [name for name, up in nodes.items() if up and name not in theirs]
    return [
        hostlist(dict.fromkeys([*(name for name in nodes if name not in share), *theirs]))
        for share in shares(usable, cluster.allocations, hosts, cluster.partition)
    ]


def one_allocation(request: Request) -> Request:
    """What is asked of one job of several."""
    cluster = replace(request.spec.cluster, allocations=1)
    return replace(request, spec=replace(request.spec, cluster=cluster))


def nodes_of(sinfo: str, *, default: bool) -> dict[str, bool]:
    """Nodes, and whether they get new jobs, from `sinfo --noheader --Node --format=%N %t %P`.

    `default`: only those of the default partition.
    """
    lines = [line.split() for line in sinfo.splitlines() if len(line.split()) == 3]
    return {
        name: gets_jobs(state) for name, state, partition in lines if not default or partition.endswith("*")
    }


def shares(nodes: Sequence[str], allocations: int, hosts: int, partition: str | None) -> list[list[str]]:
    """Disjoint shares of the nodes, neighbours together. InputError where they are fewer than `hosts` each."""
    if len(nodes) < allocations * hosts:
        where = "the default partition" if partition is None else f"partition {partition}"
        most = len(nodes) // hosts
        would = f"at most {most} of them fit" if most else "`sinfo` lists the partitions and their nodes"
        raise InputError(
            f"{KEY}={allocations}: {allocations} x {hosts} nodes are needed, and {where} has {len(nodes)} that get "
            f"jobs; {would} (cluster.partition, or the topology)"
        )
    ends = [len(nodes) * k // allocations for k in range(allocations + 1)]
    return [list(nodes[first:last]) for first, last in itertools.pairwise(ends)]


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
    vague = queue.ended_by_slurm(stands.job.id)
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
