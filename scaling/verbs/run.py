"""`scaling run`: plan, measure, analyse and report, here."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rich.console import Console

from scaling.config import requests
from scaling.errors import InputError, ScalingError
from scaling.launchers.slurm import require_allocation
from scaling.plan import Plan
from scaling.run import begun, create, jobs_of, measure
from scaling.store import RunFolder
from scaling.tryout import needs_trying, try_model
from scaling.verbs.compare import compare_folders

RESUME = "--resume"


def main(arguments: list[str]) -> int:
    """Plan, measure, analyse and report every run that the command line asks for; compare several."""
    if any(word.partition("=")[0] == RESUME for word in arguments):
        path = _to_resume(arguments)
        runs = begun(path)
        for plan, folder in runs:
            folder.require_own()
            require_allocation(plan)
        return _run(runs, multirun=runs[0][1].path != path)
    asked = requests("run", arguments)
    if not asked.items:
        return 0
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    for job in jobs:
        require_allocation(job.plan)
        if needs_trying(job.plan.spec):
            try_model(job.plan)
    for job in jobs:
        create(job.request, job.plan, job.folder)
    return _run([(job.plan, job.folder) for job in jobs], multirun=asked.multirun)


def _to_resume(arguments: list[str]) -> Path:
    """The folder after --resume, which stands alone: what is to be measured is in the run's own plan."""
    word, _, path = arguments[0].partition("=")
    rest = arguments[1:]
    if word == RESUME and not path and rest:
        path, *rest = rest
    if word != RESUME or not path or rest:
        raise InputError(
            f"scaling run {' '.join(arguments)}: {RESUME} RUN is expected alone; the run's own plan says what is left"
        )
    return Path(path)


def _run(runs: list[tuple[Plan, RunFolder]], *, multirun: bool) -> int:
    """Measure and report one run after the other."""
    from scaling.report.progress import watching  # noqa: PLC0415

    signal.signal(signal.SIGTERM, _interrupt_once)
    console, codes = Console(), []
    for plan, folder in runs:
        with watching(plan) as progress:
            status = measure(plan, folder, progress)
        codes.append(_finish(folder, console))
        if status.state == "interrupted":
            break
    done = [folder for (_, folder), code in zip(runs, codes, strict=False) if code in (0, 3)]
    if multirun and len(done) > 1:
        compare_folders(done, console, as_json=False, into=RunFolder(done[0].path.parent))
    return 3 if len(codes) < len(runs) else max(codes, key=lambda code: (code == 1, code))


def _interrupt_once(_number: int, _frame: object) -> None:
    """Ended from outside as by Ctrl-C: in order. Slurm signals the harness and its script: one of them is enough."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.SIGTERM)


def _finish(folder: RunFolder, console: Console) -> int:
    """Everything after the rank files. What was measured is reported even if a later stage fails."""
    from scaling.rebuild import rebuild  # noqa: PLC0415
    from scaling.report.terminal import print_analysis  # noqa: PLC0415
    from scaling.report.wandb import log_run  # noqa: PLC0415

    try:
        rebuilt = rebuild(folder)
    except OSError as error:
        measured = any(folder.path.glob("launches/*/rank-*.jsonl"))
        kept = f"what was measured is kept: make room, then `scaling run --resume {folder.path}`"
        print(
            f"scaling: {folder.path}: no report could be written ({error.strerror}); "
            f"{kept if measured else 'nothing is left of what was measured'}",
            file=sys.stderr,
        )
        return 3 if measured else 1
    except InputError:
        if folder.plan.exists():
            raise
        print(f"scaling: {folder.path}: was removed while it was measured", file=sys.stderr)
        return 1
    except ScalingError as error:
        print(f"scaling: {error}", file=sys.stderr)
        return 1
    print_analysis(console, rebuilt.analysis, rebuilt.plan, report_path=folder.report_html)
    warning = log_run(folder, rebuilt.plan, rebuilt.analysis, rebuilt.histories)
    if warning:
        print(f"scaling: W&B: {warning}", file=sys.stderr)
    return rebuilt.exit_code
