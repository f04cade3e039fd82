"""Results of MLPerf Training as those of a run: a point for each number of devices.

    samples/s      mean over runs of what each run's epochs give        step = global batch / samples/s
    E(n)           (samples/s / n) over the same at the smallest n      strong: one global batch; weak: one a device

Intervals are over runs: with few runs at each size, their spread is pooled over sizes (analysis/study).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scaling.analysis.invariants import within
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Fabric,
    Fits,
    Measured,
    Point,
    Quality,
    RunInfo,
    TrialStatus,
)
from scaling.analysis.study.study import launch_spread, over_launches
from scaling.errors import InputError, ScalingError
from scaling.reading import RefusedError
from scaling.spec.plan import PUBLISHED, Plan
from scaling.spec.topology import BACKEND_OF, GPU, Topology
from scaling.traces.described import described
from scaling.traces.published.mllog import read_log
from scaling.traces.published.series import Series, Size, gather
from scaling.traces.published.systems import read_system

TERMS = (
    "derived from published MLPerf Training logs, not verified by MLCommons; MLPerf is a trademark of the MLCommons "
    "Association"
)
"""MLCommons asks that figures which it has not verified are called so (MLPerf results messaging guidelines)."""
_RESULT = re.compile(r"^result_\d+\.txt$")
FILES_MAX = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One series as a run's results."""

    series: Series
    analysis: Analysis
    plan: Plan

    @property
    def name(self) -> str:
        """A short name for a folder: benchmark, system, mode and batch."""
        first = self.series.sizes[0]
        batch = first.global_batch if self.series.mode == "strong" else first.global_batch // first.world_size
        words = f"{self.series.benchmark}-{self.analysis.run.topology}-{self.series.mode}-{batch}"
        return re.sub(r"[^A-Za-z0-9.]+", "-", words).strip("-")[:120]


def import_mlperf(paths: Sequence[str]) -> tuple[Published, ...]:
    """All series of the logs. InputError where there is none to read; ScalingError where none gives a figure."""
    files = _files(paths)
    found, said = [], []
    for path in files:
        try:
            log = read_log(path)
        except (OSError, RefusedError) as error:
            said.append(f"{path}: cannot be used ({error.strerror if isinstance(error, OSError) else error})")
            continue
        system, why = read_system(path)
        said += [why] if why else []
        found.append((log, system))
    if not found:
        raise InputError(f"{said[0]}" + ("" if len(said) == 1 else f"; and {len(said) - 1} more"))
    series, doubts = gather(found)
    said += doubts
    if not series:
        raise ScalingError(f"no log gives a throughput: {'; '.join(said[:3])}")
    return tuple(_published(one, said) for one in series)


def _files(paths: Iterable[str]) -> list[Path]:
    found: list[Path] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            inside = sorted(p for p in path.rglob("result_*.txt") if _RESULT.match(p.name))
            if not inside:
                raise InputError(
                    f"{path}: no result_N.txt in this folder; logs of MLPerf Training are expected"
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path}: no such file or folder; logs of MLPerf Training are expected")
    if len(found) > FILES_MAX:
        raise InputError(f"{len(found)} logs: {FILES_MAX} at most are read in a call")
    return list(dict.fromkeys(found))


def _published(series: Series, said: Sequence[str]) -> Published:
    system, largest = series.system, series.sizes[-1]
    spread, degrees = launch_spread([[1 / r.samples_per_s for r in s.runs] for s in series.sizes])
    points = tuple(_point(size, series.sizes[0], spread, degrees) for size in series.sizes)
    name = " ".join(word for word in (system.submitter, system.name) if word) or "unknown system"
    notes = [system.device, system.interconnect, system.network and f"between nodes: {system.network}"]
    files = {str(r.path) for s in series.sizes for r in s.runs}
    mine = [line for line in said if any(line.startswith(f"{f}:") for f in files)]
    logs = [r for size in series.sizes for r in size.runs]
    per_device = sum(r.unit == "device" for r in logs)
    if per_device and largest.world_size > 1:
        mine.append(f"{per_device} of {len(logs)} logs state the throughput of one device, not of the job")
    others = [line for line in said if "left out" in line or "cannot be" in line]
    plan = described(
        PUBLISHED,
        sorted(files),
        model=series.benchmark or "unknown benchmark",
        topology=Topology(
            name=name,
            kind="local",
            hosts=largest.nodes,
            ranks_per_host=-(-largest.world_size // largest.nodes),
            device=GPU,
            backend=BACKEND_OF[GPU],
            note="; ".join(["from MLPerf logs", *filter(None, notes)]),
        ),
        world_sizes=[s.world_size for s in series.sizes],
        mode=series.mode,
        batch_per_rank=series.sizes[0].global_batch // series.sizes[0].world_size,
        global_batch=largest.global_batch,
        precision="as published",
    )
    runs = sum(len(s.runs) for s in series.sizes)
    covers = (
        f"intervals over {runs} runs, their spread pooled over {len(series.sizes)} sizes"
        if spread is not None
        else "one run a size: no interval"
    )
    analysis = Analysis(
        schema=SCHEMA,
        run=RunInfo(
            id=plan.id,
            model=plan.spec.model.name,
            topology=name,
            precision=plan.spec.precision,
            mode=series.mode,
            task="train",
            backend="not stated",
            device=system.device or "not stated",
            started=plan.created,
            duration_s=0.0,
            synthetic=False,
            launches=runs,
        ),
        points=points,
        fabric=Fabric(),
        fits=Fits(),
        inference=(),
        verdicts=(),
        quality=Quality(
            contended_blocks=0,
            dropped_samples=0,
            clock_bound_us=None,
            reached=(covers,),
            warnings=tuple(dict.fromkeys([TERMS, *mine, *others])),
        ),
        trials=tuple(TrialStatus(world_size=s.world_size, status="done") for s in series.sizes),
    )
    return Published(series=series, analysis=within(analysis), plan=plan)


def _point(size: Size, base: Size, spread: float | None, degrees: int) -> Point:
    n, m, runs = size.world_size, base.world_size, len(size.runs)
    rate = over_launches(Measured(size.samples_per_s, n=runs), spread, degrees, runs)
    efficiency = Measured(1.0, 1.0, 1.0, runs)
    if n != m:
        kept = Measured((size.samples_per_s / n) / (base.samples_per_s / m), n=min(runs, len(base.runs)))
        efficiency = over_launches(kept, spread, degrees, len(base.runs), runs)
    return Point(
        world_size=n,
        hosts=size.nodes,
        status="done",
        step_ms=size.global_batch * 1e3 / rate,
        samples_per_s=rate,
        speedup=efficiency * (n / m),
        efficiency=efficiency,
        base_world_size=m,
    )


def summary(found: Published) -> tuple[str, ...]:
    """The points of a series, and what is to be said of them, as lines for a person."""
    series, analysis = found.series, found.analysis
    first = series.sizes[0]
    share = first.global_batch // first.world_size
    batch = f"global batch {first.global_batch}" if series.mode == "strong" else f"batch {share} a device"
    lines = [
        f"# {analysis.run.model} on {analysis.run.topology}: {series.mode} scaling, {batch}",
        f"#{'devices':>8} {'nodes':>6} {'runs':>5} {'samples/s':>16} {'a device':>9} "
        f"{'step ms':>15} {'efficiency':>16}",
    ]
    for point, size in zip(analysis.points, series.sizes, strict=True):
        rate = point.samples_per_s
        each = "-" if rate is None else f"{rate.value / point.world_size:.4g}"
        kept = (
            "-" if point.efficiency is None or len(series.sizes) < 2 else str(point.efficiency * 100) + " %"
        )
        lines.append(
            f" {point.world_size:>8} {point.hosts:>6} {len(size.runs):>5} {rate!s:>16} {each:>9} {point.step_ms!s:>15} "
            f"{kept:>16}"
        )
    return (*lines, *(f"# note     {line}" for line in analysis.quality.warnings))
