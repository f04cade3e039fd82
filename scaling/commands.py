"""What each verb does, put together from the stages."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from scaling import codec, resources
from scaling.config import Request, requests
from scaling.errors import InputError, ScalingError
from scaling.plan import Plan
from scaling.run import check_folder, create, default_folder, measure, plan_request
from scaling.store import RunFolder, write_json, write_text

TRY_S = 120
"""A custom model's factory and first step may take so long when it is tried before a launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run that is about to start."""

    request: Request
    plan: Plan
    folder: RunFolder


def run(arguments: list[str]) -> int:
    """Plan, measure, analyse and report every run that the command line asks for; compare several."""
    asked = requests("run", arguments)
    if not asked.items:
        return 0
    jobs = _jobs(asked.items, multirun=asked.multirun)
    for job in jobs:
        _try_model(job.plan)
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
        _compare([job.folder for job in done], console, as_json=False, into=RunFolder(folder))
    return 3 if len(codes) < len(jobs) else max(codes, key=lambda code: (code == 1, code))


def _jobs(asked: tuple[Request, ...], *, multirun: bool) -> list[Job]:
    """A folder for every run; those of a multirun are numbered below one."""
    jobs: list[Job] = []
    parent: Path | None = None
    for index, request in enumerate(asked):
        plan = plan_request(request)
        path = request.run_dir or parent or default_folder(plan)
        parent = path if multirun else None
        folder = check_folder(path / str(index) if multirun else path)
        jobs.append(Job(request=request, plan=plan, folder=folder))
    return jobs


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


def _try_model(plan: Plan) -> None:
    """One step of a model that is not ours, in a process of its own, before anything is launched."""
    model = plan.spec.model
    if model.target.startswith("scaling.worker.models."):
        return
    document = json.dumps({"target": model.target, "args": model.args, "batch": plan.trials[0].batch})
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scaling.worker.tryout"],
            input=document,
            capture_output=True,
            text=True,
            timeout=TRY_S,
            check=False,
            env=_worker_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"model._target_={model.target}: its first step took longer than {TRY_S} s"
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(
            lines[-1] if lines else f"model._target_={model.target}: failed with {done.returncode}"
        )


def _worker_environment() -> dict[str, str]:
    import os  # noqa: PLC0415

    return {**os.environ, "PYTHONPATH": str(resources.import_root())}


def plan(arguments: list[str], *, as_json: bool) -> int:
    """Say what would run; touch nothing."""
    from scaling.report.planned import describe, document  # noqa: PLC0415

    asked = requests("plan", arguments)
    jobs = _jobs(asked.items, multirun=asked.multirun)
    if as_json and jobs:
        documents = [document(job.plan, job.folder) for job in jobs]
        print(json.dumps(documents[0] if len(documents) == 1 else {"plans": documents}, indent=1))
    elif jobs:
        print("\n".join(describe(job.plan, job.folder) for job in jobs))
    return 0


def analyze(path: str, *, as_json: bool) -> int:
    """Rebuild and print."""
    from scaling.rebuild import rebuild  # noqa: PLC0415
    from scaling.report.terminal import print_analysis  # noqa: PLC0415

    folder = RunFolder(path).require()
    rebuilt = rebuild(folder)
    if as_json:
        print(json.dumps(codec.encode(rebuilt.analysis), indent=1))
    else:
        print_analysis(Console(), rebuilt.analysis, rebuilt.plan, report_path=folder.report_html)
    return rebuilt.exit_code


def compare(paths: list[str], *, as_json: bool, fail_below: float | None) -> int:
    """Every run against the first."""
    folders = [RunFolder(path).require() for path in paths]
    return _compare(folders, Console(), as_json=as_json, fail_below=fail_below)


def _compare(
    folders: list[RunFolder],
    console: Console,
    *,
    as_json: bool,
    into: RunFolder | None = None,
    fail_below: float | None = None,
) -> int:
    from scaling.analysis.compare import compare as compared  # noqa: PLC0415
    from scaling.rebuild import read_analysis, read_plan  # noqa: PLC0415
    from scaling.report.html import comparison_page  # noqa: PLC0415
    from scaling.report.terminal import print_comparison  # noqa: PLC0415

    analyses = [(read_analysis(folder), read_plan(folder)) for folder in folders]
    (base, base_plan), others = analyses[0], analyses[1:]
    machine = _machine(folders[0])
    found = [
        compared(
            base,
            other,
            base_plan,
            other_plan,
            same_machine=machine is not None and machine == _machine(folder),
        )
        for folder, (other, other_plan) in zip(folders[1:], others, strict=True)
    ]
    documents: list[Any] = [codec.encode(item) for item in found]
    whole = documents[0] if len(documents) == 1 else {"comparisons": documents}
    if as_json:
        print(json.dumps(whole, indent=1))
    else:
        for item in found:
            print_comparison(console, item)
    if into is not None:
        write_json(into.comparison, whole)
        for index, (item, (other, _)) in enumerate(zip(found, others, strict=True)):
            name = "comparison.html" if len(found) == 1 else f"comparison-{index + 1}.html"
            write_text(into.path / name, comparison_page(item, base, other))
            console.print(f"comparison: {into.path / name}", soft_wrap=True, highlight=False)
    if fail_below is None:
        return 0
    if not all(item.comparable for item in found):
        raise InputError(
            f"--fail-below: the runs are not comparable: {'; '.join(r for i in found for r in i.reasons)}"
        )
    ratios = [p.ratio for item in found for p in item.points]
    return int(any(r is not None and r.high is not None and r.high < fail_below for r in ratios))


def _machine(folder: RunFolder) -> tuple[str, ...] | None:
    """What tells one machine from another in the records of a run; None where they are gone."""
    try:
        record = json.loads(folder.launch(0).env(0).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return tuple(
        str(record.get(key)) for key in ("hostname", "cpu", "cores", "kernel", "torch", "device_name")
    )


def report(path: str, *, show: bool) -> int:
    """Print a run's report; open its page on request."""
    from scaling.rebuild import read_analysis, read_plan  # noqa: PLC0415
    from scaling.report.terminal import print_analysis  # noqa: PLC0415

    folder = RunFolder(path).require()
    print_analysis(Console(), read_analysis(folder), read_plan(folder), report_path=folder.report_html)
    if show:
        webbrowser.open(folder.report_html.absolute().as_uri())
    return 0


def sync(path: str) -> int:
    """Upload what was logged offline."""
    from scaling.report.sync import sync as upload  # noqa: PLC0415

    print(upload(RunFolder(path).require()))
    return 0
