"""All that a run's records give: tables in, with what lies beside them, and a decomposed run out. Leaves no file."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from scaling.analysis.about import Ending, endings
from scaling.analysis.analyze import analyze_strategies, of_strategies
from scaling.analysis.decompose.cases import analyze_cases
from scaling.analysis.decompose.roofline import roofline, with_tokens, with_utilisation
from scaling.analysis.decompose.timeline import histories, timelines
from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.doctor import preflight
from scaling.analysis.doctor.preflight import Preflight
from scaling.analysis.invariants import within
from scaling.analysis.network import nccl_log
from scaling.analysis.quality import clocks, memory
from scaling.analysis.results import Analysis, MemoryGrowth, PeakMemory, RooflineResult, StepHistory, Timeline
from scaling.errors import InputError, ScalingError
from scaling.records.check import check_meshes, read_checked
from scaling.records.checkup import Roofline
from scaling.records.launch import Environment, Launch, Launches
from scaling.records.paths import RunFolder
from scaling.records.run import Status, TrialStatus, read_largest, read_plan, read_status
from scaling.records.tables import Tables, map_blocks, span_ns
from scaling.settings.cases import Largest
from scaling.settings.environment import NUMA_BOUND
from scaling.settings.estimate import left_out_lines
from scaling.settings.plan import TRACE, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A run, read back from its records."""

    plan: Plan
    analysis: Analysis
    timelines: tuple[Timeline, ...]
    histories: tuple[StepHistory, ...]
    ending: Ending
    environment: Environment | None
    """Environment that represents the run's machine; None where no rank recorded one."""

    @property
    def exit_code(self) -> int:
        """0, or 3 when a trial or case is incomplete, or blocks are missing or were left out."""
        return 0 if self.analysis.whole else 3


def read_tables(folder: RunFolder, plan: Plan) -> Tables:
    """The rank files as tables, with the telemetry of each block."""
    return _inspected(folder, plan, Launches(folder, plan))[0]


def _inspected(folder: RunFolder, plan: Plan, launches: Launches) -> tuple[Tables, Preflight]:
    """The tables, and the preflight without the samples that are in them.

    Telemetry is read while other processes read the rank files of a large run.
    """
    with ThreadPoolExecutor(1) as beside:
        inspecting = beside.submit(preflight.inspect, launches)
        tables = read_checked(folder, plan)
        checks = inspecting.result()
    tables = map_blocks(tables, lambda blocks: clocks.with_telemetry(blocks, checks.samples))
    return tables, dataclasses.replace(checks, samples={})


def derive(folder: RunFolder) -> tuple[Rebuilt, Tables, Launches, RunRecords]:
    """Everything that a run's records give, the records, and those of its first strategy; leaves no file.

    Errors as `rebuild`.
    """
    plan = read_plan(folder)
    if plan.source == TRACE:
        raise InputError(f"{folder.path}: made from profiler traces; run `scaling trace` on them again")
    status, launches = read_status(folder), Launches(folder, plan)
    plan = dataclasses.replace(plan, content=launches.content or plan.content)
    tables, checks = _inspected(folder, plan, launches)
    check_meshes(plan, folder.plan)
    trials = endings(plan, status, tables)
    if tables.empty:
        errors = [*(t.error for t in trials if t.error), *map(str, tables.gaps), "no worker wrote a record"]
        raise ScalingError(f"{folder.path}: nothing was measured: {errors[0]}")
    grown = memory.growth(tables.memory, tables.blocks)
    largest = read_largest(folder)
    ending = _ending(plan, tables, launches, status, trials, checks, grown, largest)
    runs = of_strategies(tables, plan)
    drawn = timelines(runs[0])
    ran = histories(runs[0], checks.states)
    if plan.spec.kind.by_cases:
        analysis = analyze_cases(tables, plan, ending, launches.outcomes, largest)
    else:
        peaks = [{n: _memory(launches, n, k) for n in plan.spec.world_sizes} for k in range(len(runs))]
        analysis = analyze_strategies(runs, ending, peaks)
    analysis = dataclasses.replace(analysis, memory=grown)
    if analysis.points:
        analysis = _with_roofline(analysis, launches, plan)
    analysis = within(analysis)
    rebuilt = Rebuilt(
        plan=plan,
        analysis=analysis,
        timelines=drawn,
        histories=ran,
        ending=ending,
        environment=launches.environment,
    )
    return rebuilt, tables, launches, runs[0]


def _ending(
    plan: Plan,
    tables: Tables,
    launches: Launches,
    status: Status | None,
    trials: tuple[TrialStatus, ...],
    checks: Preflight,
    grown: tuple[MemoryGrowth, ...],
    largest: Largest | None,
) -> Ending:
    """How the launches ended, with the facts from their files other than the records."""
    environment = launches.environment
    logged = plan.spec.topology.backend == "nccl"
    logs = (nccl_log.read_files(paths) for paths in launches.nccl_logs()) if logged else ()
    bounds = [bound for record in launches.memories if (bound := record.device_clock_bound_ns) is not None]
    return Ending(
        duration_s=status.duration_s if status else span_ns(tables.blocks) / 1e9,
        launches=len({rank.launch for rank in tables.ranks}),
        trials=trials,
        memory={n: _memory(launches, n) for n in plan.spec.world_sizes},
        warnings=(
            *left_out_lines(plan, plan.content, largest),
            *checks.warnings,
            *memory.warnings(grown),
            *clocks.warnings(tables.blocks),
            *memory.variable_warnings(launches.facts),
        ),
        device_name=(environment.device_name or "") if environment else "",
        ranks_per_device=max(map(len, preflight.by_device(launches.facts)), default=1),
        torch=str(environment.facts.get("torch", "")) if environment else "",
        binding=str(environment.facts.get(NUMA_BOUND, "")) if environment else "",
        buffers_bytes=environment.buffers_bytes if environment and not plan.spec.kind.by_cases else 0,
        nccl=next((log for log in logs if log is not None), None),  # of the last launch that has a log
        device_clock_bound_ns=max(bounds, default=None),
        stolen=checks.stolen,
    )


def _with_roofline(analysis: Analysis, launches: Launches, plan: Plan) -> Analysis:
    """With rank 0's step against its ceilings, and how well each world size uses the peak; tokens where known."""
    points, environment = analysis.points, launches.environment
    if environment and environment.tokens_per_sample:
        points = with_tokens(points, environment.tokens_per_sample)
    launch = next((launch for launch in launches if launch.roofline), None)
    result = None
    if launch is not None and launch.roofline is not None:
        batches = {t.world_size: t.batch for t in plan.trials}
        alike = {p.world_size for p in points if batches[p.world_size] == launch.roofline.work.batch}
        result = _roofline(launch, launch.roofline, analysis, alike)
        points = with_utilisation(points, result, alike)
    return dataclasses.replace(analysis, points=points, roofline=result)


def _roofline(
    launch: Launch, record: Roofline, analysis: Analysis, alike: Collection[int]
) -> RooflineResult | None:
    """The step without DDP; if measured, the one that ran beside all other ranks. `alike`: sizes of the same batch."""
    largest = max(analysis.points, key=lambda p: p.world_size)
    arms, parts = largest.arms_ms, largest.parts_ms
    bare = arms.bare_all or arms.bare_one
    step = bare or largest.step_ms
    if step is None:
        return None
    waits = [] if bare else [parts.exposed_transfer, parts.exposed_skew, parts.exposed_enqueue]
    processor = launch.first.processor if launch.first else None
    return roofline(
        record.ceilings,
        record.work,
        step,
        rank=0,
        device=f"{analysis.run.device}: {processor}",
        device_name=processor or "",
        input_ms=parts.input,
        also_ms=[p.step_ms for p in analysis.points if p.step_ms and p.world_size in alike],
        kernels=launch.kernels,
        alone_ms=arms.bare_one.value if arms.bare_one else None,
        waits_ms=sum(wait.value for wait in waits if wait),
        on_host=analysis.run.device == "cpu",
    )


def _memory(launches: Launches, world_size: int, strategy: int = 0) -> PeakMemory:
    """The memory of the rank that held most under a strategy, over all launches; None where none was recorded."""
    records = [r for r in launches.memories if r.rank < world_size and strategy < len(r.strategies)]
    peaks = [sizes[world_size] for r in records if world_size in (sizes := r.strategies[strategy])]
    most = max(peaks, key=lambda peak: peak.get("peak_bytes", -1), default={})
    communicators = [peak["communicators_bytes"] for peak in peaks if "communicators_bytes" in peak]
    fields = {f.name: most.get(f.name) for f in dataclasses.fields(PeakMemory)}
    return PeakMemory(**fields | {"communicators_bytes": max(communicators, default=None)})
