"""Submit a run as a Slurm job: write its script, hand it to Slurm, and note the job in jobs.json.

Each allocation of one run gets nodes of its own: a partition's nodes are dealt out before the jobs are submitted. Each
job excludes the other jobs' nodes, so that they need not wait for each other, and a job that starts again stays on its
own. Which nodes of its share a job gets is Slurm's choice.
"""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from scaling import resources
from scaling.errors import InputError, ScalingError, way_out, while_reading
from scaling.launchers.jobs import Job, create
from scaling.launchers.slurm import queue
from scaling.launchers.slurm import script as sbatch
from scaling.launchers.slurm.job_status import Analyse, settle, standing
from scaling.launchers.slurm.queue import SCHEMA, Jobs, Submitted, gets_jobs, hostnames, run, submitted
from scaling.launchers.slurm.script import compare_script, job_script
from scaling.plain import tell
from scaling.reading import read_text
from scaling.records.files import write_json, write_text
from scaling.records.paths import RunFolder
from scaling.records.run import left, status_of
from scaling.settings.plan import Plan, Request
from scaling.settings.run import Spec
from scaling.units import hostlist


def script(job: Job, exclude: str = "") -> str:
    """The script of a run's job, which leaves out some nodes. InputError where the run does not use Slurm."""
    if job.plan.spec.launcher != "slurm":
        raise InputError(f"launcher={job.plan.spec.launcher}: runs without Slurm; use `scaling run`")
    template = (resources.folder("slurm") / "job.sbatch").read_text(encoding="utf-8")
    return job_script(
        template,
        job.plan,
        job.folder,
        python=sys.executable,
        cwd=Path.cwd(),
        root=resources.import_root(),
        exclude=exclude,
    )


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
    return compare_script(
        (resources.folder("slurm") / "compare.sbatch").read_text(encoding="utf-8"),
        plan,
        list(folders),
        folders[0].path.parent,
        list(after),
        python=sys.executable,
        root=resources.import_root(),
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
        write_json(folder.jobs, Jobs(schema=SCHEMA, jobs=(*earlier, job)))
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
_EXCLUDE = "cluster.sbatch.exclude"


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
            f"{_EXCLUDE} that are not to be used"
        )
    theirs = hostnames(cluster.sbatch.get("exclude", ""))
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
    """Disjoint shares of the nodes, one for each allocation, neighbours together.

    InputError where they are fewer than `hosts` each.
    """
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
