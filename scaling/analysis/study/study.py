"""Efficiency and its loss over separate launches at several world sizes. Pure.

The smallest world size m is the base. With T the mean plain step and b the samples of a rank in a step,

    E(n) = (b_n / b_m) x T(m) / T(n)        weak: b_n = b_m; strong: n b_n = m b_m

Launches of the same script differ by more than the steps within one do. Their logarithms' standard deviation s is
pooled over the world sizes, with as many degrees of freedom as there are launches less world sizes, and the interval of
E is +- t s sqrt(1/k_m + 1/k_n) for k launches at a world size; never shorter than what the steps within the launches
give. With one launch at each world size there is only the latter, and the study says so.

The loss, for m = 1, adds up by construction: the share of a phase in the typical ranks' step at n, less E times its
share at 1, is that phase's growth as a fraction of T(n). What is left are the waits, of which straggler and link are
known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path

from scaling.analysis.analyze import analyze
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.invariants import within
from scaling.analysis.results import SCHEMA, Analysis, Fabric, Loss, Measured, Point, Study, StudyRun
from scaling.analysis.run import derive
from scaling.analysis.statistics.rounds import student
from scaling.analysis.study.size import Size, causes, quality, read_size, warnings
from scaling.errors import InputError, ScalingError
from scaling.reading import as_number
from scaling.records.paths import RunFolder, find_run, named
from scaling.records.run import TrialStatus, read_plan, read_started
from scaling.records.tables import joined
from scaling.settings.parallel import PIPELINED
from scaling.settings.plan import Plan

_SAME = ("model", "precision", "device", "backend")


def study(sizes: Sequence[Size], notes: Sequence[str] = ()) -> tuple[Analysis, Plan]:
    """The runs as one Analysis, with a Plan that has all world sizes; `notes`: warnings to put first.

    InputError where they are no study: one world size, two runs of the same one, other models, or unequal batches.
    """
    sizes = sorted(sizes, key=lambda size: size.world_size)
    mode = _checked(sizes)
    base, largest = sizes[0], sizes[-1]
    spread, degrees = launch_spread([size.launch_ns for size in sizes])
    points = tuple(_point(size, base, spread, degrees) for size in sizes)
    summary = Study(
        runs=tuple(
            StudyRun(
                world_size=size.world_size,
                id=size.analysis.run.id,
                path=str(Path(size.path)),
                batch=size.batch or None,
                launch_ms=tuple(ns / 1e6 for ns in size.launch_ns),
            )
            for size in sizes
        ),
        base_world_size=base.world_size,
        covers="within" if spread is None else "launches",
        launch_spread=spread,
        degrees=degrees,
    )
    spec = replace(
        largest.plan.spec,
        world_sizes=tuple(size.world_size for size in sizes),
        mode=mode,
        batch_per_rank=base.batch,
        global_batch=base.batch * base.world_size,
    )
    plan = replace(largest.plan, spec=spec, trials=tuple(s.plan.trials[0] for s in sizes))
    each = [size.analysis for size in sizes]
    run = replace(
        largest.analysis.run,
        mode=mode,
        started=min(part.run.started for part in each),
        duration_s=sum(part.run.duration_s for part in each),
        launches=sum(part.run.launches for part in each),
    )
    analysis = Analysis(
        schema=SCHEMA,
        run=run,
        points=points,
        fabric=Fabric(levels=tuple(chain.from_iterable(part.fabric.levels for part in each))),
        inference=(),
        verdicts=tuple(
            chain.from_iterable(
                causes(size, point, base, summary, len(sizes) - 1)
                for size, point in zip(sizes, points, strict=True)
            )
        ),
        quality=quality(sizes, summary, points, (*notes, *warnings(sizes, summary))),
        trials=tuple(chain.from_iterable(part.trials for part in each)),
        study=summary,
    )
    return analysis, plan


def launch_spread(launches: Sequence[Sequence[float]]) -> tuple[float | None, int]:
    """(pooled standard deviation of the logarithm over launches of one world size, degrees of freedom).

    `launches`: the mean step of each launch, for each world size, ns. None without a second launch anywhere.
    """
    squares, degrees = 0.0, 0
    for steps in launches:
        logs = [math.log(step) for step in steps]
        mean = sum(logs) / max(1, len(logs))
        squares += sum((log - mean) ** 2 for log in logs)
        degrees += max(0, len(logs) - 1)
    return (None, 0) if not degrees else ((squares / degrees) ** 0.5, degrees)


def over_launches(number: Measured, spread: float | None, degrees: int, *counts: int) -> Measured:
    """A number with the interval that launches give it, never shorter than its own.

    `counts`: launches at each world size that it was made of; `spread` and `degrees` as of `launch_spread`.
    """
    if spread is None:
        return number
    half = student(degrees) * spread * sum(1 / count for count in counts) ** 0.5
    longest = max(half, number.log_half_width or 0.0)
    return Measured.around_log(number.value, longest, min(counts))


def _checked(sizes: Sequence[Size]) -> str:
    """The mode of scaling; InputError where the runs are no study."""
    first = sizes[0]
    other = next((size for size in sizes if not size.plan.kind.followed), None)
    if other is not None:
        raise InputError(
            f"{other.path}: made by `scaling run`, whose report has every world size; runs of a Probe are expected"
        )
    ranks = [size.world_size for size in sizes]
    if len(set(ranks)) < 2:
        raise InputError(
            f"{', '.join(s.path for s in sizes)}: all at world size {ranks[0]}; runs at two world sizes or more are "
            "expected"
        )
    for run, other in pairwise(sizes):
        if run.world_size == other.world_size:
            raise InputError(
                f"{run.path} and {other.path}: both at world size {run.world_size}; launches of one world size belong "
                "into one folder, Probe(run_dir=...), to be resampled together"
            )
    for size in sizes:
        if size.plan.spec.parallel.name == PIPELINED:
            raise InputError(
                f"{size.path}: the stages of a pipeline, which have the samples of a step together; runs whose ranks "
                "have samples of their own are expected"
            )
        for name in _SAME:
            a, b = getattr(first.analysis.run, name), getattr(size.analysis.run, name)
            if a != b:
                raise InputError(
                    f"{size.path}: {name} is {b}, and {a} in {first.path}; runs of one script are expected"
                )
    return _mode(sizes)


def _mode(sizes: Sequence[Size]) -> str:
    """Weak or strong, by the samples that a rank and a step had; weak where they were not seen."""
    first = sizes[0]
    if not all(size.batch for size in sizes) or all(size.batch == first.batch for size in sizes):
        return "weak"
    whole = first.batch * first.world_size
    if all(abs(size.batch * size.world_size - whole) < size.world_size for size in sizes):
        return "strong"
    seen = ", ".join(f"{size.batch} at {size.world_size}" for size in sizes)
    raise InputError(
        f"samples per rank and step: {seen}: neither equal (weak scaling) nor equal over all ranks (strong scaling); "
        "train with one of them, or say what a step has: Probe(batch=...)"
    )


def _point(size: Size, base: Size, spread: float | None, degrees: int) -> Point:
    """The run's own point, relative to the base."""
    point, step, least = size.point, size.point.step_ms, base.point.step_ms
    m, n = base.world_size, size.world_size
    if step is None or least is None:
        return replace(point, base_world_size=m, efficiency=None, speedup=None, loss=None)

    share = size.batch / base.batch if size.batch and base.batch else 1.0
    within = [x.log_half_width for x in (step, least)]
    half = math.hypot(*(x for x in within if x is not None)) if None not in within else None
    counts = (len(base.launch_ns), len(size.launch_ns))
    ratio = Measured.around_log(least.value * share / step.value, half, min(step.n, least.n))
    efficiency = Measured(1.0, 1.0, 1.0, step.n) if n == m else over_launches(ratio, spread, degrees, *counts)
    rate = point.samples_per_s
    return replace(
        point,
        step_ms=over_launches(step, spread, degrees, counts[1]),
        samples_per_s=rate and over_launches(rate, spread, degrees, counts[1]),
        speedup=efficiency * (n / m),
        efficiency=efficiency,
        base_world_size=m,
        loss=_loss(size, base, efficiency) if m == 1 < n else None,
    )


def _loss(size: Size, base: Size, efficiency: Measured) -> Loss | None:
    """1 - E by cause; None where a run has no phases."""
    here, alone = size.shares, base.shares
    if not all(name in shares for shares in (here, alone) for name in ("compute", "input", "host", "waits")):
        return None

    def grown(name: str) -> Measured:
        return here[name] - efficiency * alone[name]

    loss = size.point.loss
    terms = {
        name: getattr(loss, name)
        for name in ("straggler", "imbalance", "link_latency", "link_bandwidth")
        if loss is not None and getattr(loss, name) is not None
    }
    return Loss(
        slower_compute=grown("compute"),
        input=grown("input"),
        host=grown("host"),
        **terms,
        unexplained=grown("waits") - sum(terms.values(), Measured(0.0, 0.0, 0.0, here["waits"].n)),
    )


COARSER = (
    "measured without a line in the script (--no-probe): a step lasts from one optimizer step to the next, and what "
    "runs after it (zero_grad, logging) counts as input"
)


def runs_at(path: Path | str) -> list[RunFolder]:
    """The runs that a path names: those at each world size below a folder of `scaling launch`, else the one run."""
    folder = RunFolder(named(path))
    sizes = (as_number(path.name.removeprefix("ranks-")) for path in folder.path.glob("ranks-*"))
    below = [folder.at_size(size) for size in sorted(size for size in sizes if size is not None)]
    if folder.plan.is_file() or not below:
        return [find_run(path)]
    return [run for run in below if any(run.path.glob("launches/*/rank-*.jsonl"))]


def same_script(plans: Sequence[Plan]) -> bool:
    """Whether these are runs of own loops at different world sizes, which only a study can compare."""
    return all(plan.kind.followed for plan in plans) and len({plan.ranks for plan in plans}) == len(plans) > 1


def make_study(folders: Sequence[RunFolder]) -> tuple[Analysis, Plan]:
    """Read every run anew and put them together. Writes nothing.

    InputError where they are no study; ScalingError where a run measured nothing.
    """
    plans = [read_plan(folder) for folder in folders]
    same: dict[int, list[RunFolder]] = {}
    for folder, plan in zip(folders, plans, strict=True):
        same.setdefault(plan.ranks, []).append(folder)
    analysis, plan = study([read_runs(each) for each in same.values()])
    return within(analysis), plan


def study_at(folder: RunFolder) -> tuple[Analysis, Plan]:
    """The study of what `scaling launch` started below a folder, with what failed. Errors as make_study."""
    started = read_started(folder)
    sizes, errors = [], []
    for run in runs_at(folder.path):
        try:
            sizes.append(read_runs([run]))
        except InputError:
            raise
        except ScalingError as error:
            errors.append(str(error))
    if len(sizes) < 2:
        raise ScalingError(
            errors[0] if errors else f"{folder.path}: fewer than two world sizes were measured"
        )
    if started is not None and not started.probe:
        errors.append(COARSER)
    analysis, plan = study(sizes, errors)
    analysis = within(analysis)
    if started is None:
        return analysis, plan
    plan = replace(plan, spec=replace(plan.spec, topology=started.topology))
    failed = {launch.world_size: launch for launch in started.launches if launch.status != "done"}
    trials = [t for t in analysis.trials if t.world_size not in failed]
    trials += [
        TrialStatus(world_size=n, status=f.status, error=f.error, rank=f.rank) for n, f in failed.items()
    ]
    info = replace(analysis.run, topology=started.topology.name, id=started.id)
    ordered = tuple(sorted(trials, key=lambda t: t.world_size))
    return replace(analysis, run=info, trials=ordered), plan


def read_runs(folders: Sequence[RunFolder]) -> Size:
    """What runs at one world size bring to a study: those of several folders are launches of one; writes nothing.

    InputError where they trained with other batches.
    """
    derived = [derive(folder) for folder in folders]
    last, _, _, run = derived[-1]
    path = ", ".join(str(folder.path) for folder in folders)
    if len(derived) == 1:
        return read_size(path, last.analysis, run)
    batches = {rebuilt.plan.trials[0].batch for rebuilt, *_ in derived}
    if len(batches) > 1:
        seen = " and ".join(map(str, sorted(batches)))
        raise InputError(
            f"{path}: all at world size {last.plan.ranks}, with {seen} samples per rank and step; one batch is expected"
        )
    ending = replace(
        last.ending,
        duration_s=sum(rebuilt.ending.duration_s for rebuilt, *_ in derived),
        launches=sum(rebuilt.ending.launches for rebuilt, *_ in derived),
        warnings=tuple(dict.fromkeys(line for rebuilt, *_ in derived for line in rebuilt.ending.warnings)),
        stolen=tuple(part for rebuilt, *_ in derived for part in rebuilt.ending.stolen),
    )
    whole = RunRecords(joined([rows for _, rows, *_ in derived]), last.plan)
    return read_size(path, within(analyze(whole, ending)), whole)
