"""`scaling verify`: measure the remedy that a run's verdict proposes against the present settings."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from rich.console import Console

from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.results import Analysis, Measured, Remedy, Verdict
from scaling.analysis.verdicts import remedies
from scaling.cli.measuring import end_in_order, watch, why
from scaling.cli.output import print_json
from scaling.cli.pipeline import read_analysis
from scaling.cli.verbs.arguments import parse
from scaling.config.compose import again
from scaling.errors import InputError, ScalingError
from scaling.launchers.jobs import Job, check_folder, create, launcher_of, plan_request
from scaling.reading import as_number
from scaling.records.check import read_checked
from scaling.records.files import write_json
from scaling.records.paths import RunFolder, find_run, require_own
from scaling.records.run import read_config, read_plan
from scaling.report.documents.checkup import verification_document
from scaling.report.terminal import draw
from scaling.settings.parallel import AXES
from scaling.settings.plan import Request
from scaling.settings.run import Spec
from scaling.settings.schedule import PLAIN, VARIANT

WITHIN_A_LAUNCH = ("parallel", "ddp", "fsdp", "accumulation_steps", "batch_per_rank", "global_batch")
"""Fields of a spec that may differ between two strategies of one process."""
PAIRS = 4
"""Number of pairs of launches, in turns, for settings that need separate launches."""

Gains = tuple[Measured | None, Measured | None]


def main(arguments: list[str]) -> int:
    """Exit status 0 when the remedy held or no difference is visible, 1 when it did not hold, 3 when interrupted."""
    end_in_order()
    paths, given = parse("verify", arguments)
    folder = require_own(find_run(paths[0]))
    plan, analysis = read_plan(folder), read_analysis(folder)
    cause, remedy = _remedy(analysis, given.try_)
    text = read_config(folder)
    size = [f"world_sizes=[{cause.world_size}]", "repeats=1", *_first_strategy(plan.spec)]
    now = again(text, size)
    then = again(text, [*size, *remedy.overrides.split()])
    below = (folder.path / "verify" / str(k) for k in itertools.count())
    parent = RunFolder(next(path for path in below if not path.exists()))
    jobs = _jobs(now, then, parent)
    for job in jobs[:2]:  # the others are launched as these are
        launcher_of(job.plan).require(job.plan)
    gain, same = remedies.interleaved(_measured(jobs[0])) if len(jobs) == 1 else _alternating(jobs)
    how = remedies.INTERLEAVED if len(jobs) == 1 else remedies.ALTERNATING
    verification = remedies.judge(plan, cause, remedy, gain, same, how)
    write_json(parent.path / "verification.json", verification)
    if given.json:
        print_json(verification)
    else:
        draw(Console(), verification_document(verification, parent.path))
    return int(verification.verdict == "not_held")


def _remedy(analysis: Analysis, which: str | None) -> tuple[Verdict, Remedy]:
    """The first remedy that has overrides, or the one asked for; numbered over all verdicts, from 1."""
    choices = [(v, r) for v in analysis.verdicts for r in v.try_ if r.overrides]
    if which is None and choices:
        return max(choices, key=lambda pair: pair[0].world_size == choices[0][0].world_size)
    if not choices:
        raise InputError(
            f"{analysis.run.id}: no verdict of this run has overrides to try; `scaling report` lists its verdicts"
        )
    if not 1 <= (as_number(str(which)) or 0) <= len(choices):
        listed = ", ".join(f"{k} {r.overrides}" for k, (_, r) in enumerate(choices, 1))
        raise InputError(f"--try {which}: one of {listed} is expected")
    return choices[int(which or 0) - 1]


def _first_strategy(spec: Spec) -> list[str]:
    """Overrides that measure the first of several strategies alone, which the verdicts are of."""
    if not spec.vary.parallel:
        return []
    first = spec.strategies[0].parallel
    degrees = [f"parallel.{name}={getattr(first, name)}" for name in AXES]
    return ["vary.parallel=null", f"parallel={first.name}", *degrees]


def _jobs(now: Request, then: Request, parent: RunFolder) -> list[Job]:
    """One launch with both settings if two wrappers of a process may differ in them, else launches of each in turns."""
    same = {name: getattr(now.spec, name) for name in WITHIN_A_LAUNCH}
    if dataclasses.replace(then.spec, **same) == now.spec:
        return [_job(now, then.spec, check_folder(parent.path))]
    pairs = [request for _ in range(PAIRS) for request in (now, then)]
    return [_job(r, r.spec, check_folder(parent.path / f"{k:02}")) for k, r in enumerate(pairs)]


def _job(request: Request, variant: Spec, folder: RunFolder) -> Job:
    plan = dataclasses.replace(plan_request(request), variant=variant)
    return Job(request=request, plan=plan, folder=folder)


def _measured(job: Job) -> RunRecords:
    """The records of one launch. ScalingError where it did not complete."""
    create(job)
    status = watch(job.plan, job.folder)
    if status.state == "interrupted":
        raise KeyboardInterrupt
    if status.state != "done":
        raise ScalingError(f"{job.folder.path}: {why(status)}")
    return RunRecords(read_checked(job.folder, job.plan), job.plan)


def _alternating(jobs: list[Job]) -> Gains:
    steps = [_plain_ns(_measured(job)) for job in jobs]
    first, second = jobs[0].plan, jobs[1].plan
    n = first.trials[0].world_size
    samples = remedies.samples_ratio(second.spec, first.spec, n)
    return remedies.alternating(np.array(steps[::2]), np.array(steps[1::2]), samples, first.spec.seed)


def _plain_ns(run: RunRecords) -> float:
    """Mean plain step over both arms of a launch that ran the same settings, ns."""
    records = run.trial(run.plan.ranks)
    arms = [records.arm(arm)["step"] for arm in (PLAIN, VARIANT)]
    return float(np.nanmean(arms))
