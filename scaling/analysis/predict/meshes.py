"""A sharded run at meshes, world sizes and links that were not run: the prediction, its interval, and the back-test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from scaling.analysis.network.ring import NoPathError
from scaling.analysis.predict.fabrics import carries
from scaling.analysis.predict.mesh_links import Question
from scaling.analysis.predict.mesh_model import NO_SOURCE, Listings, MeshModel
from scaling.analysis.predict.units import UnitSource
from scaling.analysis.results import (
    SCHEMA,
    Analysis,
    Assumption,
    Backtest,
    Degrees,
    Measured,
    PredictedMemory,
    PredictedPoint,
    Prediction,
)
from scaling.hardware.datasheets import memory_of
from scaling.spec.listing import Listed
from scaling.spec.parallel import Parallel
from scaling.spec.plan import Plan
from scaling.spec.run import WhatIf
from scaling.spec.topology import Topology

RESERVED = 0.95
"""Share of a device's memory that tensors can have: the rest is the driver's, the context's and the communicators'."""


def mesh_predictions(
    sources: Sequence[UnitSource], plan: Plan, analysis: Analysis, asked: WhatIf, listings: Listings
) -> Prediction:
    """Everything that `scaling predict` shows of a run with sharded strategies."""
    own, parallel = plan.spec.topology, asked.parallel or plan.spec.parallel
    fsdp = asked.fsdp or plan.spec.fsdp
    model = MeshModel(sources, plan, listings)
    tests = backtests(sources, plan, listings)
    doubt = math.sqrt(sum(test.error**2 for test in tests) / len(tests)) if tests else 0.0
    points: list[PredictedPoint] = []
    leans: tuple[tuple[str, str, float], ...] = ()
    notes: list[str] = []
    for n in asked.world_sizes:
        hosts = asked.topology.hosts_of(n)
        question = Question(parallel=parallel, fsdp=fsdp, topology=asked.topology, mesh=parallel.mesh(n))
        source = model.start(question)
        cannot = "one rank alone is measured, not predicted" if n == 1 else model.cannot(question, source)
        if source is None or cannot:
            why = cannot or NO_SOURCE
            points.append(PredictedPoint(world_size=n, hosts=hosts, from_world_size=0, cannot=why))
            continue
        try:
            leans = model.leans(source, question)
        except NoPathError as error:
            points.append(
                PredictedPoint(
                    world_size=n, hosts=hosts, from_world_size=source.world_size, cannot=str(error)
                )
            )
            continue
        samples = asked.batch_at(question.mesh.data_parallel, plan.spec.mode) * question.mesh.data_parallel
        points.append(_point(source, question, model.listed(question), leans, doubt, samples, analysis, plan))
        notes += [note for note in model.notes(source, question) if note not in notes]
    return Prediction(
        schema=SCHEMA,
        run=analysis.run,
        changes=asked.changes,
        topology=asked.topology.name,
        points=tuple(points),
        half_at=None,
        looked_up_to=0,
        backtest=tests,
        backtest_missing=None
        if tests
        else "fewer than two meshes were measured, so nothing is left to predict one of them from",
        assumptions=tuple(
            Assumption(what=what, varied=varied, step_change=change, efficiency_change=None)
            for what, varied, change in sorted(leans[1:], key=lambda one: -abs(one[2]))
        ),
        notes=(*notes, *_notes(own, asked)),
    )


def _point(
    source: UnitSource,
    question: Question,
    listed: Listed,
    leans: Sequence[tuple[str, str, float]],
    doubt: float,
    samples: int,
    analysis: Analysis,
    plan: Plan,
) -> PredictedPoint:
    step = source.step_ms * leans[0][2]
    moves = [change for *_, change in leans[1:]]
    error = math.hypot(*moves, doubt if moves else 0.0)
    step = step.with_error(error * step.value)
    efficiency = None
    if source.bare_ms is not None:
        alone = source.bare_ms / question.mesh.tensor  # ranks that divide a layer do the work of one
        efficiency = alone.value / step
        efficiency = efficiency.with_error(efficiency.value * (alone.half_width or 0.0) / alone.value)
    mesh = question.mesh
    measured = _measured_memory(analysis, plan, source)
    if measured is not None:  # at most: what lies between divided layers is not divided
        measured = round(measured * max(1.0, source.mesh.tensor / mesh.tensor))
    return PredictedPoint(
        world_size=mesh.size,
        hosts=question.topology.hosts_of(mesh.size),
        from_world_size=source.world_size,
        step_ms=step,
        samples_per_s=None if not samples else _rate_of(samples, step),
        speedup=None if efficiency is None else efficiency * float(mesh.size),
        efficiency=efficiency,
        parallel=Degrees(strategy=question.parallel.name, **dataclasses.asdict(mesh)),
        memory=_memory(listed, question.topology, measured),
    )


def _rate_of(samples: int, step: Measured) -> Measured:
    def of(ms: float | None) -> float | None:
        return None if ms is None else samples * 1e3 / ms

    return Measured(samples * 1e3 / step.value, of(step.high), of(step.low), step.n)


def _measured_memory(analysis: Analysis, plan: Plan, source: UnitSource) -> int | None:
    """Activations of a rank, bytes, where the source was measured; with the same batch."""
    points = analysis.points
    for spec, one in zip(plan.spec.strategies, analysis.strategies, strict=False):
        points = one.points if spec.parallel == source.parallel else points
    point = next((p for p in points if p.world_size == source.world_size), None)
    return None if point is None else point.memory.activations_bytes


def _memory(listed: Listed, topology: Topology, activations: int | None) -> PredictedMemory:
    """What a rank holds: the listing's parts, and the activations."""
    known = memory_of(topology.accelerator) if topology.accelerator else None
    total = sum(listed.memory.values()) + (activations or 0)
    return PredictedMemory(
        **{f"{name}_bytes": size for name, size in listed.memory.items()},
        activations_bytes=activations,
        capacity_bytes=None if known is None else known[0],
        fits=None if known is None else total <= RESERVED * known[0],
    )


def backtests(sources: Sequence[UnitSource], plan: Plan, listings: Listings) -> tuple[Backtest, ...]:
    """Every measured strategy and world size, predicted from the others."""
    tests, several = [], len(plan.spec.strategies) > 1
    for left_out in sources:
        others = [source for source in sources if source is not left_out]
        found = predicted_step(MeshModel(others, plan, listings), left_out.parallel, left_out.world_size)
        if found is None:
            continue
        source, step = found
        tests.append(
            Backtest(
                world_size=left_out.world_size,
                from_world_size=source.world_size,
                strategy=left_out.parallel.name if several else None,
                from_strategy=source.parallel.name if several else None,
                predicted_ms=step,
                measured_ms=left_out.step_ms,
                error=step.value / left_out.step_ms.value - 1,
                held=step.holds(left_out.step_ms.value),
            )
        )
    return tuple(tests)


def predicted_step(model: MeshModel, parallel: Parallel, n: int) -> tuple[UnitSource, Measured] | None:
    """Where the prediction starts from, and the step on the run's own topology in the same launch, ms.

    None where it cannot be predicted.
    """
    question = Question(parallel=parallel, fsdp=model.fsdp, topology=model.own, mesh=parallel.mesh(n))
    source = model.start(question)
    if source is None or model.cannot(question, source):
        return None
    try:
        leans = model.leans(source, question)
    except NoPathError:
        return None
    moves = [change for *_, change in leans[1:3]]
    step = source.step_ms * leans[0][2]
    return source, step.with_error(math.hypot(*moves) * step.value if moves else 0.0)


def _notes(own: Topology, asked: WhatIf) -> tuple[str, ...]:
    notes = []
    if asked.elsewhere and not carries(own, asked.topology):
        notes.append(
            f"the run used {own.backend} over {own.name}: a rank's own times are carried over as they were measured "
            "there, on its device; its links are not"
        )
    if own.backend != asked.topology.backend and own.backend == "gloo":
        notes.append(
            "a host that runs ahead of its device gathers sooner than this run's did, so more may be hidden there"
        )
    notes.append("the latest of more ranks is taken to cost what it cost among those that were measured")
    if asked.topology.name != own.name and asked.topology.note:
        notes.append(asked.topology.note)
    return tuple(notes)
