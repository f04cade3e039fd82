"""The analysis of a run from the traces of its ranks, and a plan that describes it, for reports and comparisons.

Rules over the step's parts name what takes its time. Traces hold no baseline, so there is no efficiency.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from scaling.analysis.doctor.differences import ranks_text
from scaling.analysis.invariants import within
from scaling.analysis.network import links
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Fabric,
    Point,
    Quality,
    Remedy,
    RunInfo,
    StepParts,
    Timeline,
    TrialStatus,
    Verdict,
)
from scaling.analysis.results.measured import Measured, mean_of
from scaling.analysis.results.traces import Traced, TracedRank
from scaling.analysis.results.verdicts import NOTABLE, named, undecided
from scaling.settings.plan import TRACE, Plan, make_plan
from scaling.settings.run import Measure, Model, Spec
from scaling.settings.topology import BACKEND_OF, CPU, GPU, Topology
from scaling.traces.profiler.jobs import UNSEEN, Table, TracedRanks, jobs, measured, table, timeline
from scaling.traces.profiler.match import Matched, RankClock, match
from scaling.traces.profiler.read import RankTrace, UnreadFile
from scaling.traces.profiler.traffic import collectives, dilation, kinds, straggler, traffic
from scaling.units import significant
from scaling.version import __version__

LARGE_BYTES = 1 << 18
"""Bandwidth limits larger messages, latency smaller ones."""


def verdicts(point: Point, traced: Traced, job: TracedRanks) -> tuple[Verdict, ...]:
    """Causes by share of the step, largest first; `undecided` where none stands out or ranks are missing."""
    step = point.step_ms
    if step is None or step.value <= 0:
        return ()
    if traced.missing_ranks:
        missing = len(traced.missing_ranks)
        return (undecided(point.world_size, f"{missing} of {point.world_size} ranks have no readable trace"),)
    if job.unseen:
        return (undecided(point.world_size, f"{ranks_text(job.unseen)}: {UNSEEN}"),)
    no_workers = any(file.no_workers for file in job.ranks.values())
    causes = _causes(point, traced, step, no_workers=no_workers)
    if causes:
        return tuple(sorted(causes, key=lambda v: -(v.share.value if v.share else 0)))
    why = "no part of the step but compute takes more than 3 % of it"
    return (undecided(point.world_size, why, confidence="medium"),)


def _causes(point: Point, traced: Traced, step: Measured, *, no_workers: bool) -> list[Verdict]:
    causes: list[Verdict] = []

    def add(cause: str, ms: Measured | None, *evidence: str, overrides: str = "", code: str = "") -> None:
        share = None if ms is None else ms * (1 / step.value)
        if share is not None and share.value > NOTABLE and share.least > 0:
            remedies = (Remedy(overrides=overrides, code=code),) if code else ()
            causes.append(named(cause, point, share, evidence, remedies))

    parts, late = point.parts_ms, point.straggler
    if late is not None:
        waits = (
            f"the others wait {significant(late.cost_ms.value)} of {significant(step.value)} ms for rank "
            f"{late.rank}, exposed"
        )
        add("straggler", late.cost_ms, f"{waits}; it takes longest over {late.phase}")
    sized = [c for c in traced.collectives if c.bytes]
    small = sum(c.transfer_us.value * c.count for c in sized if (c.bytes or 0) < LARGE_BYTES)
    whole = sum(c.transfer_us.value * c.count for c in sized)
    if (moved := parts.exposed_transfer) is not None:
        share = small / whole if whole else 0.0
        waits = f"{significant(moved.value)} of {significant(step.value)} ms wait for data on the link"
        below = f"{share:.0%} of the transfer is in messages below 256 KiB"
        # Both remedies are DDP's: sharded training has all-gathers, too.
        reduced = bool(sized) and all(c.collective == "all_reduce" for c in sized)
        code = "DistributedDataParallel(model, bucket_cap_mb=100)" if reduced else ""
        add("link_latency", moved * share, waits, below, overrides="ddp.bucket_cap_mb=100", code=code)
        code = code and "reduce gradients every other batch: `with ddp.no_sync():` around the others"
        add("link_bandwidth", moved * (1 - share), waits, below, overrides="accumulation_steps=2", code=code)
    elif point.world_size > 1 and traced.ranks:
        exposed = mean_of([r.exposed_ms for r in traced.ranks])
        waits = f"{significant(exposed.value)} of {significant(step.value)} ms wait for communication"
        add("communication", exposed, f"{waits}; whether for a late rank or for data is unknown")
    if traced.dilation is not None:
        slower = f"{traced.dilation.kernels} kernels take {traced.dilation.ratio.value:.3g} times as long"
        add("overlap", traced.dilation.cost_ms, f"{slower} during communication")
    if parts.host is not None:
        gaps = [
            sum(getattr(r, f"{k}_ms").value for r in traced.ranks) / len(traced.ranks)
            for k in ("host", "launch", "idle", "copies")
        ]
        still = (
            f"{significant(parts.host.value)} of {significant(step.value)} ms pass without compute or communication: "
            f"{significant(gaps[0])} not yet launched, {significant(gaps[1])} launched and not started, "
            f"{significant(gaps[2])} without a known launch, {significant(gaps[3])} copies"
        )
        add("host", parts.host, still, overrides="compile=true", code="model = torch.compile(model)")
    if parts.input is not None:
        waits = f"{significant(parts.input.value)} ms a step wait for the data loader"
        if no_workers:
            waits += ", which has no workers: it reads in the training's own process"
        code = "DataLoader(..., num_workers=4, persistent_workers=True)" if no_workers else ""
        add("input", parts.input, waits, overrides="model.workers=4", code=code)
    return causes


def _plan(traced: Sequence[TracedRanks], batch: int | None, name: str, files: Sequence[RankTrace]) -> Plan:
    """A plan with the model's name, the topology and the world sizes, as far as the traces show them.

    It describes what ran, for reports and comparisons: there are no records behind it.
    """
    used = [f for job in traced for f in job.ranks.values()]
    hosts = max(_hosts(job) or 1 for job in traced)
    largest = max(job.world_size for job in traced)
    devices = Counter(f.device_name for f in used if f.device_name)
    backends = Counter(f.backend for f in used if f.backend)
    device = GPU if any(f.parts.device == "gpu" for f in used) else CPU
    backend = BACKEND_OF[GPU if any(f.unseen for f in used) else device]
    begun = dt.datetime.now(tz=dt.timezone.utc).astimezone()
    salt = hashlib.sha256("".join(str(f.path) for f in files).encode("utf-8", "replace")).hexdigest()[:8]
    spec = Spec(
        model=Model(name=name, target=TRACE, args={"batch": batch} if batch else {}),
        topology=Topology(
            name=devices.most_common(1)[0][0] if devices else "trace",
            kind="local",
            hosts=hosts,
            ranks_per_host=-(-largest // hosts),
            device=device,
            backend=backends.most_common(1)[0][0] if backends else backend,
            note="from profiler traces" + ("" if batch else "; the traces do not hold the samples of a step"),
        ),
        world_sizes=tuple(job.world_size for job in traced),
        mode="weak",
        batch_per_rank=batch or 0,
        global_batch=(batch or 0) * largest,
        precision="as traced",
        measure=Measure(
            name=TRACE,
            rounds_min=1,
            rounds_max=1,
            steps=max(len(f.parts.labels) for f in used),
            lead_in=0,
            warmup_max=0,
            target_half_width=None,
            budget_s=0.0,
            fabric_bytes_max=0,
            step_timeout_s=0.0,
        ),
    )
    created = begun.isoformat(timespec="seconds")
    return make_plan(
        spec, run_id=f"{begun:%Y%m%d-%H%M%S}-{salt}", created=created, version=__version__, source=TRACE
    )


def _hosts(job: TracedRanks) -> int | None:
    """Hosts that the traces name; None where they name none."""
    return len({f.host for f in job.ranks.values() if f.host}) or None


def _beside(job: TracedRanks, traced: Traced) -> tuple[str, ...]:
    """Collectives beside what others reach, of groups whose hosts are known: all ranks, or those of a single host."""
    names = {f.device_name for f in job.ranks.values()}
    hosts = None if any(f.host is None for f in job.ranks.values()) else _hosts(job)
    name = names.pop() if len(names) == 1 else None
    if name is None or hosts is None:
        return ()
    points = (
        (c.collective, c.group_size, hosts, c.bytes, c.busbw_gbit_s.value / 8)
        for c in traced.collectives
        if c.bytes and c.busbw_gbit_s is not None and (hosts == 1 or c.group_size == job.world_size)
    )
    return links.beside_best(name, points)


PROFILED = (
    "the profiler was on, so every step includes its cost "
    "(the training is faster without it; a trace does not show by how much)"
)


def analyse(
    files: Sequence[RankTrace],
    problems: Sequence[UnreadFile],
    *,
    batch: int | None = None,
    name: str = "trace",
) -> tuple[Analysis, Plan, tuple[Timeline, ...]]:
    """The contents of analysis.json, a plan that describes the run, and a typical step of each world size."""
    worlds, notes = jobs(files, problems)
    each = [(job, matched, table(job, matched)) for job in worlds for matched in [_match(job)]]
    traced = tuple(_traced(*parts) for parts in each)
    base = worlds[0].world_size, each[0][2]  # the smallest
    points = tuple(_point(*parts, base, batch) for parts in each)
    plan = _plan(worlds, batch, name, files)
    warnings = [*notes, PROFILED]
    if batch is None and any(p.efficiency for p in points):
        warnings.append(
            "the traces do not hold the samples of a step: efficiency and speedup hold if a rank's batch is the same "
            "at every world size"
        )
    for job, matched, _ in each:
        if job.missing:
            warnings.append(
                f"INCOMPLETE: {len(job.missing)} of {job.world_size} ranks have no readable trace "
                f"({ranks_text(job.missing)}); means are over the others"
            )
        warnings += [*job.warnings, *matched.unmatched]
        if job.world_size > 1 and not any(len(f.parts.collectives.sent) for f in job.ranks.values()):
            warnings.append(
                f"INCOMPLETE: no communication was recognised in the traces of {job.world_size} ranks; "
                "if there was any, it is counted as compute"
            )
    analysis = Analysis(
        schema=SCHEMA,
        run=RunInfo(
            id=plan.id,
            model=name,
            topology=plan.spec.topology.name,
            precision=plan.spec.precision,
            mode=plan.spec.mode,
            task="train",
            backend=plan.spec.topology.backend,
            device=plan.spec.topology.device,
            started=plan.created,
            duration_s=0.0,
            synthetic=False,
            launches=1,
        ),
        points=points,
        fabric=Fabric(others=tuple(t for j, c in zip(worlds, traced, strict=True) for t in _beside(j, c))),
        inference=(),
        verdicts=tuple(v for p, t, j in zip(points, traced, worlds, strict=True) for v in verdicts(p, t, j)),
        quality=Quality(
            contended_blocks=0,
            dropped_samples=sum(f.absurd + f.odd for f in files),
            clock_bound_us=None,
            warnings=tuple(warnings),
        ),
        trials=tuple(_outcome(job) for job in worlds),
        trace=traced,
    )
    drawn = tuple(timeline(job.ranks, matched, job.world_size) for job, matched, _ in each)
    return within(analysis), plan, drawn


def _match(job: TracedRanks) -> Matched:
    groups = {rank: dict(file.groups) for rank, file in job.ranks.items()}
    for members in groups.values():
        if len(members) == 1:  # a collective without a group belongs to the only group
            members[""] = next(iter(members.values()))
    first = min(f.started_us for f in job.ranks.values())
    return match(
        {r: f.parts.collectives for r, f in job.ranks.items()},
        job.world_size,
        {r: f.parts.labels for r, f in job.ranks.items()},
        groups,
        {
            r: RankClock(origin_ns=f.base_ns + round((f.started_us - first) * 1e3), host=f.host)
            for r, f in job.ranks.items()
        },
    )


_COLUMNS = {
    "step": "window",
    "exposed_transfer": "moved",
    "exposed_skew": "waited",
    **{name: name for name in ("compute", "exposed", "hidden", "copies", "input", "host", "launch", "idle")},
}
"""Part of a rank's step -> its column."""


def _traced(job: TracedRanks, matched: Matched, table: Table) -> Traced:
    steps = table.columns["window"].shape[1]
    ranks = tuple(
        TracedRank(
            rank=r,
            file=str(f.path),
            steps=steps,
            events=f.events,
            **{f"{part}_ms": table.of(column, r) for part, column in _COLUMNS.items()},  # type: ignore[arg-type]
        )
        for r, f in job.ranks.items()
    )
    spread = [float(i.spread) / 1e3 for i in matched.instances]
    return Traced(
        world_size=job.world_size,
        device=next(iter(job.ranks.values())).parts.device,
        missing_ranks=job.missing,
        ranks=ranks,
        collectives=collectives(matched),
        kinds=kinds(job),
        dilation=dilation(job),
        end_spread_us=Measured(float(np.median(spread)), n=len(spread)) if spread else None,
    )


def _point(
    job: TracedRanks, matched: Matched, table: Table, base: tuple[int, Table], batch: int | None
) -> Point:
    step = table.mean("window")
    assert step is not None

    rest = table.columns["host"] + table.columns["launch"] + table.columns["idle"] + table.columns["copies"]
    n = job.world_size
    complete = not job.missing and not job.unseen
    parts = StepParts(
        input=table.mean("input"),
        forward=table.mean("forward"),
        backward=table.mean("backward"),
        exposed_transfer=table.mean("moved") if n > 1 else None,
        exposed_skew=table.mean("waited") if n > 1 else None,
        optimizer=table.mean("optimizer"),
        host=measured(rest.mean(axis=0)),
    )
    scale = base[1].mean("window") if base[0] < n and complete else None
    efficiency = Measured(scale.value / step.value, n=min(scale.n, step.n)) if scale else None
    return Point(
        world_size=n,
        hosts=_hosts(job) or 1,
        status="done" if complete else "incomplete",
        step_ms=step,
        samples_per_s=None if batch is None else batch * n * 1e3 / step,
        speedup=None if efficiency is None else efficiency * n / base[0],
        efficiency=efficiency,
        base_world_size=1 if efficiency is None else base[0],
        parts_ms=parts,
        straggler=straggler(job, matched, table, step),
        comm=traffic(matched, table),
    )


def _outcome(job: TracedRanks) -> TrialStatus:
    ranks, error = job.missing, f"no readable trace of {ranks_text(job.missing)}" if job.missing else ""
    if job.unseen and not job.missing:
        ranks, error = job.unseen, UNSEEN
    if not ranks:
        return TrialStatus(world_size=job.world_size, status="done")
    return TrialStatus(world_size=job.world_size, status="incomplete", error=error, rank=ranks[0])
