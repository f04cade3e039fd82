"""`scaling run`: plan, measure, analyse and report, here."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rich.console import Console

from scaling.config import Request, requests
from scaling.errors import InputError, ScalingError
from scaling.launchers.commands import require
from scaling.plan import Plan
from scaling.run import Job, begun, create, earlier_launches, jobs_of, measure
from scaling.store import RunFolder
from scaling.tryout import needs_trying, try_model
from scaling.verbs.arguments import split
from scaling.verbs.compare import compare_folders

RESUME = "--resume"


def main(arguments: list[str]) -> int:
    """Plan, measure, analyse and report every run that the command line asks for; compare several."""
    rest, options = split("run", arguments)
    if RESUME in options:
        if rest:
            raise InputError(
                f"scaling run {' '.join(arguments)}: {RESUME} RUN is expected alone; "
                "the run's own plan says what is left"
            )
        path = Path(options[RESUME])
        runs = begun(path)
        for plan, folder in runs:
            folder.require_own()
            require(plan)
        return _run(runs, multirun=runs[0][1].path.parent == path)
    search = _Search()
    asked = requests("run", rest, search.measure)
    if search.codes:
        return search.finish()
    if not asked.items:
        return 0
    jobs = jobs_of(asked.items, multirun=asked.multirun)
    for job in jobs:
        _check(job)
    for job in jobs:
        create(job.request, job.plan, job.folder)
    return _run([(job.plan, job.folder) for job in jobs], multirun=asked.multirun)


class _Search:
    """Runs that a sweeper asks for one by one, each when it knows the objective of those before."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.parent: Path | None = None

    def measure(self, request: Request) -> float:
        """The objective of one run; ScalingError where it was not measured, for the sweeper to go on or to end."""
        from scaling.rebuild import read_analysis  # noqa: PLC0415
        from scaling.report.objective import objective  # noqa: PLC0415

        (job,) = jobs_of((request,), multirun=True, parent=self.parent, first=len(self.codes))
        _check(job)
        create(job.request, job.plan, job.folder)
        self.parent = job.folder.path.parent
        signal.signal(signal.SIGTERM, _interrupt_once)
        code, stopped = _measured(job.plan, job.folder, Console())
        self.codes.append(code)
        if stopped:
            raise KeyboardInterrupt
        name = job.plan.spec.tracking.objective
        value = objective(read_analysis(job.folder), job.plan) if code in (0, 3) else None
        if value is None:
            raise ScalingError(f"{job.folder.path}: {name} was not measured")
        print(f"# objective  {name} {value.value:.6g}")
        return value.value

    def finish(self) -> int:
        """Exit status of them all."""
        return _worst(self.codes)


def _check(job: Job) -> None:
    """Everything that can be known before anything is written."""
    require(job.plan)
    if needs_trying(job.plan.spec):
        try_model(job.plan)


def _run(runs: list[tuple[Plan, RunFolder]], *, multirun: bool) -> int:
    """Measure and report one run after the other."""
    console, codes, ended = Console(), [], False
    signal.signal(signal.SIGTERM, _interrupt_once)
    for plan, folder in runs:
        code, stopped = _measured(plan, folder, console)
        codes.append(code)
        if stopped and (code or len(codes) < len(runs)):
            rest = folder.path.parent if multirun else folder.path
            print(f"scaling: `scaling run {RESUME} {rest}` goes on with what is left", file=sys.stderr)
            ended = True
            break
    done = [folder for (_, folder), code in zip(runs, codes, strict=False) if code in (0, 3)]
    if multirun and len(done) > 1:
        compare_folders(done, console, as_json=False, into=RunFolder(done[0].path.parent))
    return 3 if ended else _worst(codes)


def _worst(codes: list[int]) -> int:
    """1 before all others: nothing was measured there."""
    return max(codes, key=lambda code: (code == 1, code))


def _measured(plan: Plan, folder: RunFolder, console: Console) -> tuple[int, bool]:
    """Exit status of one run, measured and reported, and whether somebody stopped it."""
    from scaling.report.progress import watching  # noqa: PLC0415

    before = len(earlier_launches(folder))
    try:
        with watching(plan) as progress:
            launches = measure(plan, folder, progress).launches
        stopped = len(launches) > before and launches[-1].state == "interrupted"
        return _finish(folder, console), stopped
    except KeyboardInterrupt:
        print(
            f"scaling: {folder.path}: what was measured is kept: `scaling analyze {folder.path}` reports it, "
            f"`scaling run {RESUME} {folder.path}` goes on",
            file=sys.stderr,
        )
        raise


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
