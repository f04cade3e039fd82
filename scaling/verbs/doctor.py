"""`scaling doctor`: check every rank of a configuration instead of training on it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

from rich.console import Console

from scaling import codec
from scaling.analysis.results import RunInfo
from scaling.checkup import DOCTOR
from scaling.config import requests
from scaling.doctor import parity
from scaling.doctor.examine import Evidence, collect, examine, identity, machine
from scaling.errors import InputError, ScalingError
from scaling.files import write_json
from scaling.launchers.commands import require
from scaling.plan import Plan
from scaling.run import Job, create, jobs_of, measure
from scaling.status import Status
from scaling.tryout import try_model
from scaling.verbs.arguments import split


def main(arguments: list[str]) -> int:
    """1 on a problem of severity error; 3 when it was interrupted."""
    rest, options = split("doctor", arguments)
    file = Path(options["--parity"]).expanduser() if "--parity" in options else None
    asked = requests("doctor", rest)
    if not asked.items:
        return 0
    if asked.multirun:
        raise InputError("scaling doctor: checks one configuration; -m is for `scaling run`")
    job = _job(jobs_of(asked.items, multirun=False)[0])
    other = parity.read_file(file, identity(job.plan)) if file and file.exists() else None
    if file and not file.exists():
        _writable(file)
    require(job.plan)
    try_model(job.plan, "scaling.worker.checks.tryout")
    create(job.request, job.plan, job.folder)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside as by Ctrl-C: in order
    from scaling.report.doctor import print_checkup  # noqa: PLC0415
    from scaling.report.progress import watching  # noqa: PLC0415

    with watching(job.plan, rounds=False) as progress:
        status = measure(job.plan, job.folder, progress)
    launches = job.folder.launches()  # none where the disk filled up before the first
    evidence = collect(launches[-1], job.plan) if launches else Evidence(checks=(), hosts={})
    error = next((t.error for t in status.trials if t.error), None)
    if not evidence.checks:
        raise ScalingError(f"{job.folder.path}: nothing was checked: {error or status.state}")
    found = examine(
        evidence,
        job.plan,
        _info(job.plan, status),
        error=error,
        other=other,
        file=None if file is None else str(file),
    )
    kept = machine(evidence, identity(job.plan))
    if file is not None and other is None and kept is not None:
        write_json(file, kept, indent=None)
    write_json(job.folder.doctor, found)
    if "--json" in options:
        print(json.dumps(codec.encode(found), indent=1))
    else:
        print_checkup(Console(), found, folder=job.folder.path)
    return 3 if status.state == "interrupted" else found.exit_code


def _job(job: Job) -> Job:
    """The plan of a checkup: the largest world size, once."""
    largest = max(job.plan.trials, key=lambda t: t.world_size)
    spec = dataclasses.replace(job.plan.spec, task=DOCTOR, repeats=1, world_sizes=(largest.world_size,))
    return dataclasses.replace(job, plan=dataclasses.replace(job.plan, spec=spec, trials=(largest,)))


def _writable(file: Path) -> None:
    parent = file.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--parity {file}: {parent} cannot be written to; name a file in a folder that can")


def _info(plan: Plan, status: Status) -> RunInfo:
    spec = plan.spec
    return RunInfo(
        id=plan.id,
        model=spec.model.name,
        topology=spec.topology.name,
        precision=spec.precision,
        mode=spec.mode,
        task=spec.task,
        backend=spec.topology.backend,
        device=spec.topology.device,
        started=plan.created,
        duration_s=status.duration_s,
        synthetic=spec.model.synthetic,
        launches=1,
    )
