"""`scaling run`: plan, measure, analyse and report on this machine."""

from __future__ import annotations

from pathlib import Path

from scaling.cli.measuring import check, end_in_order, require_alone, watch, worst
from scaling.cli.output import warn
from scaling.cli.simulated_run import is_simulated, simulate_run
from scaling.cli.verbs.arguments import split
from scaling.config.compose import requests
from scaling.errors import InputError, ScalingError, way_out
from scaling.launchers.jobs import begun, commit, create, jobs_of, launcher_of
from scaling.launchers.runner import earlier_launches
from scaling.records.paths import RunFolder, named, require_own
from scaling.settings.plan import Plan


def main(arguments: list[str]) -> int:
    """Plan, measure, analyse and report every run that the command line asks for, and compare them if several."""
    end_in_order()
    rest, given = split("run", arguments)
    if given.resume is not None:
        require_alone("run", arguments, alone=not rest)
        path = named(given.resume)
        runs = begun(path)
        for plan, folder in runs:
            require_own(folder)
            launcher_of(plan).require(plan)
            now = commit(Path.cwd())
            if plan.commit and now and now != plan.commit:
                warn(
                    f"{folder.path}: began with commit {plan.commit}, and what is left is measured with {now}"
                )
        return _run(runs, multirun=runs[0][1].path.parent == path, verbose=given.verbose)
    if is_simulated(rest):
        return simulate_run(rest)
    asked = requests("run", rest)
    if not asked.items:
        return 0
    jobs = [check(job) for job in jobs_of(asked.items, multirun=asked.multirun)]
    for job in jobs:
        create(job)
    return _run([(job.plan, job.folder) for job in jobs], multirun=asked.multirun, verbose=given.verbose)


def _run(runs: list[tuple[Plan, RunFolder]], *, multirun: bool, verbose: bool) -> int:
    """Measure and report the runs one after the other, then those of a multirun as one table if there are several."""
    codes, ended = [], False
    for plan, folder in runs:
        code, stopped = _measured(plan, folder, verbose=verbose)
        codes.append(code)
        if stopped and (code or len(codes) < len(runs)):
            rest = folder.path.parent if multirun else folder.path
            warn(f"`scaling run --resume {rest}` goes on with what is left")
            ended = True
            break
    done = [run for run, code in zip(runs, codes, strict=False) if code in (0, 3)]
    if multirun and len(done) > 1:
        from scaling.cli.verbs.compare import compare_folders  # noqa: PLC0415

        first, folders = done[0][0], [folder for _, folder in done]
        into = RunFolder(folders[0].path.parent)
        compare_folders(folders, into=into, tracking=first.spec.tracking)
    return 3 if ended else worst(codes)


def _measured(plan: Plan, folder: RunFolder, *, verbose: bool) -> tuple[int, bool]:
    """Measure and report one run. Returns its exit status, and whether it was interrupted."""
    before = len(earlier_launches(folder))
    try:
        launches = watch(plan, folder).launches
        stopped = len(launches) > before and launches[-1].state == "interrupted"
        return _finish(folder, verbose=verbose), stopped
    except KeyboardInterrupt:
        warn(
            f"{folder.path}: what was measured is kept: `scaling analyze {folder.path}` reports it, "
            f"`scaling run --resume {folder.path}` goes on"
        )
        raise


def _finish(folder: RunFolder, *, verbose: bool) -> int:
    """Analyse, report and log a run; returns its exit status. A failing stage does not hide what was measured."""
    from scaling.cli.measuring import log_to_wandb, print_report  # noqa: PLC0415
    from scaling.cli.pipeline import rebuild  # noqa: PLC0415

    try:
        rebuilt = rebuild(folder)
    except OSError as error:
        measured = any(folder.path.glob("launches/*/rank-*.jsonl"))
        kept = f"what was measured is kept: {way_out(error)}, then `scaling run --resume {folder.path}`"
        warn(
            f"{folder.path}: no report could be written ({error.strerror}); "
            f"{kept if measured else f'no record of the measurement is left; {way_out(error)} and run again'}"
        )
        return 3 if measured else 1
    except InputError:
        if folder.plan.exists():
            raise
        warn(f"{folder.path}: the folder was removed during the measurement; run again")
        return 1
    except ScalingError as error:
        warn(error)
        return 1
    print_report(folder, rebuilt.analysis, rebuilt.plan, verbose=verbose)
    log_to_wandb(folder, rebuilt.plan, rebuilt.analysis, rebuilt.histories, rebuilt.environment)
    return rebuilt.exit_code
