"""A scaling study of runs of one's own script, made of their records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from scaling.analysis.analyze import analyze
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.invariants import within
from scaling.analysis.results import Analysis
from scaling.analysis.run import derive
from scaling.analysis.study.size import Size, read_size
from scaling.analysis.study.study import study
from scaling.errors import InputError, ScalingError
from scaling.reading import as_number
from scaling.records.paths import RunFolder, find_run, named
from scaling.records.run import read_plan, read_started
from scaling.records.status import TrialStatus
from scaling.records.tables import joined
from scaling.settings.plan import Plan

COARSER = (
    "measured without a line in the script (--no-probe): a step lasts from one optimizer step to the next, and what "
    "runs after it (zero_grad, logging) counts as input"
)


def runs_at(path: Path | str) -> list[RunFolder]:
    """The runs that a path names: those at each world size below a folder of `scaling launch`, else the one run."""
    folder = RunFolder(named(path))
    sizes = (as_number(found.name.removeprefix("ranks-")) for found in folder.path.glob("ranks-*"))
    below = [folder.at_size(size) for size in sorted(size for size in sizes if size is not None)]
    if folder.plan.is_file() or not below:
        return [find_run(path)]
    return [run for run in below if any(run.path.glob("launches/*/rank-*.jsonl"))]


def same_script(plans: Sequence[Plan]) -> bool:
    """Whether these are runs of own loops at different world sizes, which only a study can compare."""
    return all(plan.own_loop for plan in plans) and len({plan.ranks for plan in plans}) == len(plans) > 1


def make_study(folders: Sequence[RunFolder], said: Sequence[str] = ()) -> tuple[Analysis, Plan]:
    """Read every run anew and put them together; `said`: warnings to put first. Writes nothing.

    InputError where they are no study; ScalingError where a run measured nothing.
    """
    plans = [read_plan(folder) for folder in folders]
    alien = next((f for f, plan in zip(folders, plans, strict=True) if not plan.own_loop), None)
    if alien is not None:
        raise InputError(
            f"{alien.path}: made by `scaling run`, whose report has every world size; runs of a Probe are expected"
        )
    same: dict[int, list[RunFolder]] = {}
    for folder, plan in zip(folders, plans, strict=True):
        same.setdefault(plan.ranks, []).append(folder)
    analysis, plan = study([read_runs(each) for each in same.values()], said)
    return within(analysis), plan


def study_at(folder: RunFolder) -> tuple[Analysis, Plan]:
    """The study of what `scaling launch` started below a folder, with what failed. Errors as make_study."""
    started = read_started(folder)
    found, said = [], []
    for run in runs_at(folder.path):
        try:
            found.append(read_run(run))
        except InputError:
            raise
        except ScalingError as error:
            said.append(str(error))
    if len(found) < 2:
        raise ScalingError(said[0] if said else f"{folder.path}: fewer than two world sizes were measured")
    if started is not None and not started.probe:
        said.append(COARSER)
    analysis, plan = study(found, said)
    analysis = within(analysis)
    if started is None:
        return analysis, plan
    plan = dataclasses.replace(plan, spec=dataclasses.replace(plan.spec, topology=started.topology))
    failed = {one.world_size: one for one in started.launches if one.status != "done"}
    trials = [t for t in analysis.trials if t.world_size not in failed]
    trials += [
        TrialStatus(world_size=n, status=f.status, error=f.error, rank=f.rank) for n, f in failed.items()
    ]
    info = dataclasses.replace(analysis.run, topology=started.topology.name, id=started.id)
    ordered = tuple(sorted(trials, key=lambda t: t.world_size))
    return dataclasses.replace(analysis, run=info, trials=ordered), plan


def read_run(folder: RunFolder) -> Size:
    """What one run brings to a study, from its records; writes nothing."""
    return read_runs([folder])


def read_runs(folders: Sequence[RunFolder]) -> Size:
    """What runs at one world size bring to a study: those of several folders are launches of one; writes nothing.

    InputError where they trained with other batches.
    """
    found = [derive(folder) for folder in folders]
    last, _, _, run = found[-1]
    path = ", ".join(str(folder.path) for folder in folders)
    if len(found) == 1:
        return read_size(path, last.analysis, run)
    batches = {rebuilt.plan.trials[0].batch for rebuilt, *_ in found}
    if len(batches) > 1:
        seen = " and ".join(map(str, sorted(batches)))
        raise InputError(
            f"{path}: all at world size {last.plan.ranks}, with {seen} samples a rank and step; one batch is expected"
        )
    ending = dataclasses.replace(
        last.ending,
        duration_s=sum(rebuilt.ending.duration_s for rebuilt, *_ in found),
        launches=sum(rebuilt.ending.launches for rebuilt, *_ in found),
        warnings=tuple(dict.fromkeys(said for rebuilt, *_ in found for said in rebuilt.ending.warnings)),
        stolen=tuple(taken for rebuilt, *_ in found for taken in rebuilt.ending.stolen),
    )
    whole = RunRecords(joined([rows for _, rows, *_ in found]), last.plan)
    return read_size(path, within(analyze(whole, ending)), whole)
