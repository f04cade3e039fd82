"""`scaling run`: plan, measure, analyse and report, here."""

from __future__ import annotations

import signal
import sys

from rich.console import Console

from scaling.config import requests
from scaling.errors import InputError, ScalingError
from scaling.run import Job, create, jobs_of, measure
from scaling.store import RunFolder
from scaling.tryout import try_model
from scaling.verbs.compare import compare_folders


def main(arguments: list[str]) -> int:
    """Plan, measure, analyse and report every run that the command line asks for; compare several."""
    asked = requests("run", arguments)
    if not asked.items:
        return 0
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    for job in jobs:
        if not job.plan.spec.model.target.startswith("scaling.worker.models."):
            try_model(job.plan)
    for job in jobs:
        create(job.request, job.plan, job.folder)
    from scaling.report.progress import watching  # noqa: PLC0415

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside as by Ctrl-C: in order
    console, codes = Console(), []
    for job in jobs:
        with watching(job.plan) as progress:
            status = measure(job.plan, job.folder, progress)
        codes.append(_finish(job, console))
        if status.state == "interrupted":
            break
    done = [job for job, code in zip(jobs, codes, strict=False) if code in (0, 3)]
    if asked.multirun and len(done) > 1:
        folder = jobs[0].folder.path.parent
        compare_folders([job.folder for job in done], console, as_json=False, into=RunFolder(folder))
    return 3 if len(codes) < len(jobs) else max(codes, key=lambda code: (code == 1, code))


def _finish(job: Job, console: Console) -> int:
    """Everything after the rank files. What was measured is reported even if a later stage fails."""
    from scaling.rebuild import rebuild  # noqa: PLC0415
    from scaling.report.terminal import print_analysis  # noqa: PLC0415
    from scaling.report.wandb import log_run  # noqa: PLC0415

    try:
        rebuilt = rebuild(job.folder)
    except InputError:
        raise
    except ScalingError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    print_analysis(console, rebuilt.analysis, rebuilt.plan, report_path=job.folder.report_html)
    warning = log_run(job.folder, rebuilt.plan, rebuilt.analysis, rebuilt.histories)
    if warning:
        print(f"scaling: W&B: {warning}", file=sys.stderr)
    return rebuilt.exit_code
