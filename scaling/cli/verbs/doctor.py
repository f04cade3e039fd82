"""`scaling doctor`: check every rank of a configuration instead of training."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rich.console import Console

from scaling.analysis.about import Ending, run_info
from scaling.analysis.doctor import parity
from scaling.analysis.doctor.examine import Evidence, collect, examine, identity, machine
from scaling.cli.measuring import end_in_order, watch, why
from scaling.cli.output import print_json
from scaling.cli.verbs.arguments import split
from scaling.config.compose import requests
from scaling.errors import InputError, ScalingError
from scaling.launchers.jobs import Job, create, jobs_of, launcher_of
from scaling.launchers.tryout import try_model
from scaling.reading import without_tilde
from scaling.records.checkup import DOCTOR
from scaling.records.files import write_json
from scaling.records.launch import Launch


def main(arguments: list[str]) -> int:
    """Exit status 1 on a problem of severity error, 3 when it was interrupted."""
    end_in_order()
    rest, given = split("doctor", arguments)
    file = None if given.parity is None else without_tilde(given.parity, f"--parity {given.parity}")
    asked = requests("doctor", rest)
    if not asked.items:
        return 0
    if asked.multirun:
        raise InputError("scaling doctor: checks one configuration; -m is for `scaling run`")
    job = _job(jobs_of(asked.items, multirun=False)[0])
    other = parity.read_file(file, identity(job.plan)) if file and file.exists() else None
    if file and not file.exists():
        _writable(file)
    launcher_of(job.plan).require(job.plan)
    try_model(job.plan, flops=True)
    create(job)
    status = watch(job.plan, job.folder, rounds=False)
    launches = job.folder.launches()  # none where the disk filled up before the first
    evidence = collect(Launch(launches[-1], job.plan)) if launches else Evidence(checks=(), hosts={})
    error = next((t.error for t in status.trials if t.error), None)
    if not evidence.checks:
        raise ScalingError(f"{job.folder.path}: nothing was checked: {why(status)}")
    diagnosis = examine(
        evidence,
        job.plan,
        run_info(job.plan, Ending(duration_s=status.duration_s, launches=1, trials=())),
        error=error,
        other=other,
        file=None if file is None else str(file),
    )
    kept = machine(evidence, identity(job.plan))
    if file is not None and other is None and kept is not None:
        write_json(file, kept, indent=None)
    write_json(job.folder.doctor, diagnosis)
    if given.json:
        print_json(diagnosis)
    else:
        from scaling.report.documents.checkup import document  # noqa: PLC0415
        from scaling.report.terminal import draw  # noqa: PLC0415

        draw(Console(), document(diagnosis, job.folder.path))
    return 3 if status.state == "interrupted" else diagnosis.exit_code


def _job(job: Job) -> Job:
    """The plan of a checkup: the largest world size, once."""
    largest = max(job.plan.trials, key=lambda t: t.world_size)
    spec = dataclasses.replace(job.plan.spec, task=DOCTOR, repeats=1, world_sizes=(largest.world_size,))
    return dataclasses.replace(job, plan=dataclasses.replace(job.plan, spec=spec, trials=(largest,)))


def _writable(file: Path) -> None:
    parent = file.absolute().parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--parity {file}: {parent} cannot be written to; name a file in a folder that can")
