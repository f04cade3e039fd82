"""`scaling verify`: measure the remedy that a run's verdict proposes, beside the settings as they are."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
from pathlib import Path

import numpy as np
from rich.console import Console

from scaling import codec
from scaling.analysis import verify
from scaling.analysis.results import Analysis, Measured, Remedy, Verdict
from scaling.analysis.trials import read_trial
from scaling.collect import Tables, collect
from scaling.config import Request, again
from scaling.errors import InputError, ScalingError
from scaling.files import write_json
from scaling.plan import Plan
from scaling.rebuild import read_analysis, read_config, read_plan
from scaling.records import PLAIN, VARIANT
from scaling.report.progress import watching
from scaling.report.proof import print_verification
from scaling.run import Job, check_folder, create, measure, plan_request
from scaling.spec import Spec
from scaling.store import RunFolder
from scaling.verbs.arguments import parse

WITHIN_A_LAUNCH = ("ddp", "accumulation_steps", "batch_per_rank", "global_batch")
"""Fields of a spec that two wrappers of one process can differ in."""
PAIRS = 4
"""Of alternating launches, where it takes launches."""

Gains = tuple[Measured | None, Measured | None]


def main(arguments: list[str]) -> int:
    """0 when the remedy held or nothing can be told apart, 1 when it did not hold, 3 when interrupted."""
    paths, options = parse("verify", arguments, least=1, most=1)
    folder = RunFolder(paths[0]).require().require_own()
    plan, analysis = read_plan(folder), read_analysis(folder)
    cause, remedy = _remedy(analysis, options.get("--try"))
    text = read_config(folder)
    size = [f"world_sizes=[{cause.world_size}]", "repeats=1"]
    now = again(text, size)
    then = again(text, [*size, *remedy.overrides.split()])
    parent = RunFolder(_free(folder))
    jobs = _jobs(now, then, parent)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    gain, same = _interleaved(jobs[0]) if len(jobs) == 1 else _alternating(jobs)
    how = verify.INTERLEAVED if len(jobs) == 1 else verify.ALTERNATING
    found = verify.judge(plan, cause, remedy, gain, same, how)
    write_json(parent.path / "verification.json", found)
    if "--json" in options:
        print(json.dumps(codec.encode(found), indent=1))
    else:
        print_verification(Console(), found, parent.path)
    return int(found.verdict == "not_held")


def _remedy(analysis: Analysis, which: str | None) -> tuple[Verdict, Remedy]:
    """The first remedy that has overrides, or the one asked for; numbered over all verdicts, from 1."""
    known = [(v, r) for v in analysis.verdicts for r in v.try_ if r.overrides]
    if which is None and known:
        return max(known, key=lambda pair: pair[0].world_size == known[0][0].world_size)
    if not known:
        raise InputError(
            f"{analysis.run.id}: no verdict of this run has overrides to try; `scaling report` says what there is"
        )
    if not str(which).isdigit() or not 1 <= int(which or 0) <= len(known):
        listed = ", ".join(f"{k} {r.overrides}" for k, (_, r) in enumerate(known, 1))
        raise InputError(f"--try {which}: one of {listed} is expected")
    return known[int(which or 0) - 1]


def _free(folder: RunFolder) -> Path:
    """RUN/verify/<k>, the first that is not there."""
    parent = folder.path / "verify"
    return next(path for k in itertools.count() if not (path := parent / str(k)).exists())


def _jobs(now: Request, then: Request, parent: RunFolder) -> list[Job]:
    """One launch with both where two wrappers can differ so, else launches of either in turns."""
    if not _within_a_launch(now.spec, then.spec):
        pairs = [request for _ in range(PAIRS) for request in (now, then)]
        return [_job(r, r.spec, check_folder(parent.path / f"{k:02}")) for k, r in enumerate(pairs)]
    return [_job(now, then.spec, check_folder(parent.path))]


def _job(request: Request, variant: Spec, folder: RunFolder) -> Job:
    plan = dataclasses.replace(plan_request(request), variant=variant)
    return Job(request=request, plan=plan, folder=folder)


def _within_a_launch(now: Spec, then: Spec) -> bool:
    same = {name: getattr(now, name) for name in WITHIN_A_LAUNCH}
    return dataclasses.replace(then, **same) == now


def _measured(job: Job) -> Tables:
    """ScalingError where it did not come to its end."""
    create(job.request, job.plan, job.folder)
    with watching(job.plan) as progress:
        status = measure(job.plan, job.folder, progress)
    if status.state == "interrupted":
        raise KeyboardInterrupt
    if status.state != "done":
        said = next((t.error for t in status.trials if t.error), status.state)
        raise ScalingError(f"{job.folder.path}: {said}")
    return collect(job.folder, job.plan)


def _interleaved(job: Job) -> Gains:
    return verify.interleaved(_measured(job), job.plan, job.plan.trials[0])


def _alternating(jobs: list[Job]) -> Gains:
    steps = [_plain_ns(_measured(job), job.plan) for job in jobs]
    first, second = jobs[0].plan, jobs[1].plan
    n = first.trials[0].world_size
    samples = second.spec.batch_at(n) / first.spec.batch_at(n)
    return verify.alternating(np.array(steps[::2]), np.array(steps[1::2]), samples, first.spec.seed)


def _plain_ns(tables: Tables, plan: Plan) -> float:
    """Mean plain step of a launch, both arms of which ran the same."""
    records = read_trial(tables, plan.trials[0])
    arms = [records.column(records.arm(arm), "step") for arm in (PLAIN, VARIANT)]
    return float(np.nanmean(arms))
