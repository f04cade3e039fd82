"""What a real program would do on a simulated machine, and all meshes of a world size ranked.

Every figure is simulated, and each part says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from scaling.plain import plain
from scaling.report.key_figures import PREDICTED, waterfall_bars
from scaling.report.model import Document, Lines, Section, Table, heads, lines, named
from scaling.report.text import NONE, cell, percent, quantity, ranks, sentence, value_of
from scaling_simulator.simulate.results import (
    MeshLeftOut,
    RankedMesh,
    RankedMeshes,
    SimulatedBacktest,
    SimulatedPoint,
    SimulationResults,
)
from scaling_simulator.simulation import Task

GB = 1e9


def document(results: SimulationResults) -> Document:
    """What to expect, what it leans on, and how far it may be off."""
    return Document(
        title=f"{results.model} on {results.topology}, SIMULATED",
        answer=_answer(results),
        sections=tuple(_sections(results)),
    )


def _sections(results: SimulationResults) -> Iterator[Section]:
    yield Section(title="", blocks=(_conditions(results),))
    yield Section(title="simulated", blocks=(_points(results),))
    shown = [p for p in results.points if p.step_ms is not None]
    if shown:
        last = shown[-1]
        at = f"{ranks(last.world_size)}, simulated"
        if last.loss is not None and last.world_size > 1:
            title = f"{at}: a step of {quantity(last.step_ms, 'ms')}"
            yield Section(title=title, blocks=(waterfall_bars(last.loss, last.efficiency, PREDICTED),))
        if last.transfers:
            yield Section(title=f"transfers of a step, {at}", blocks=(_transfers(last),))
        yield Section(title="memory of a rank at its peak, simulated", blocks=(_memory(results),))
    yield backtest(results.backtest, results.backtest_missing)
    yield from _limits(results)


def _limits(results: SimulationResults | RankedMeshes) -> Iterator[Section]:
    """What the figures lean on, and what they leave out."""
    yield Section(title="what this leans on", blocks=(lines(*results.inputs, look="warnings"),))
    notes = (*(f"not measured and left out: {what}" for what in results.missing), *results.warnings)
    if notes:
        yield Section(title="what it does not know", blocks=(lines(*notes, look="warnings"),))


def backtest(tests: Sequence[SimulatedBacktest], missing: str | None) -> Section:
    """Measured world sizes, simulated on the run's own machine, or why there are none."""
    table = Table(
        columns=heads("ranks", ("simulated", "ms"), ("measured", "ms"), ("error", "%")),
        rows=tuple(
            (str(t.world_size), f"{t.predicted_ms:.4g}", cell(t.measured_ms), f"{t.error * 100:+.1f}")
            for t in tests
        ),
        label="Back-test",
    )
    return Section(
        title="back-test: measured world sizes, simulated on the run's own machine",
        blocks=(table, lines(missing or "", look="prose", tone="warning")),
        title_alone=True,
    )


def _conditions(results: SimulationResults) -> Lines:
    source = "none: the data sheet's rates" if results.run is None else results.run
    size = f"{results.parameters / 1e9:.3g} B parameters, " if results.parameters else ""
    return named(
        ("model", f"{results.model}, {size}{results.precision}, {results.mode} scaling"),
        ("machine", f"{results.topology}, {results.accelerator}: SIMULATED, nothing was measured on it"),
        ("run", source),
        look="conditions",
    )


def _points(results: SimulationResults) -> Table:
    priced = any(p.usd_per_million_samples is not None for p in results.points)
    rows = tuple(_row(p, priced=priced) for p in results.points)
    bound = "; efficiency is an upper bound" if results.upper_bound else ""
    base = f", against {ranks(results.base_world_size)}" if results.base_world_size else ""
    return Table(
        columns=heads(
            "ranks",
            "hosts",
            "mesh",
            ("step", "ms"),
            "samples/s",
            ("efficiency", "%"),
            ("exposed", "ms"),
            ("peak", "GB"),
            "fits",
            *([("a million samples", "USD")] if priced else []),
        ),
        rows=rows,
        label="Simulated",
        note=f"±: what the links and inputs leave open{base}{bound}",
    )


def _row(p: SimulatedPoint, *, priced: bool) -> tuple[str, ...]:
    fits = {True: "yes", False: "NO", None: "?"}[p.fits]
    cost = "-" if p.usd_per_million_samples is None else f"{p.usd_per_million_samples:.4g}"
    return (
        str(p.world_size),
        str(p.hosts),
        _mesh(p),
        quantity(p.step_ms),
        value_of(p.samples_per_s),
        cell(p.efficiency, 100),
        "-" if p.exposed_ms is None else f"{p.exposed_ms:.4g}",
        "-" if p.memory is None else f"{p.memory.peak_bytes / GB:.1f}",
        fits,
        *([cost] if priced else []),
    )


def _mesh(p: SimulatedPoint) -> str:
    parts = {"replicate": p.replicate, "shard": p.shard, "tensor": p.tensor}
    several = [f"{name} {size}" for name, size in parts.items() if size > 1]
    return f"{p.strategy} ({', '.join(several)})" if len(several) > 1 else p.strategy


def _transfers(p: SimulatedPoint) -> Table:
    rows = tuple(
        (
            t.kind.replace("_", "-"),
            t.axis,
            str(t.calls),
            f"{t.bytes / GB:.4g}",
            f"{t.busy_ms:.4g}",
            f"{t.exposed_ms:.4g}",
        )
        for t in p.transfers
    )
    columns = heads("kind", "axis", "calls", ("bytes", "GB"), ("busy", "ms"), ("exposed", "ms"))
    return Table(columns=columns, rows=rows, label="Transfers")


def _memory(results: SimulationResults) -> Table:
    rows = []
    for p in results.points:
        if p.memory is not None:
            m = p.memory
            parts = (
                m.parameters_bytes,
                m.gradients_bytes,
                m.optimizer_bytes,
                m.activations_bytes,
                m.peak_bytes,
            )
            capacity = "-" if p.capacity_bytes is None else f"{p.capacity_bytes / GB:.1f}"
            rows.append((str(p.world_size), *(f"{part / GB:.2f}" for part in parts), capacity))
        elif p.fits is False:
            rows.append(
                (str(p.world_size), "-", "-", "-", "-", "does not fit", f"{(p.capacity_bytes or 0) / GB:.1f}")
            )
    columns = heads(
        "ranks",
        ("parameters", "GB"),
        ("gradients", "GB"),
        ("optimizer", "GB"),
        ("activations and the rest", "GB"),
        ("peak", "GB"),
        ("of", "GB"),
    )
    return Table(columns=columns, rows=tuple(rows), label="Memory")


def _answer(results: SimulationResults) -> str:
    last = results.points[-1]
    if last.fits is False:
        return sentence(f"simulated: {ranks(last.world_size)} with {last.strategy} do not fit into memory")
    if last.step_ms is None:
        return sentence(f"cannot say: {plain(last.why or 'the program failed')}")
    bound = "at most " if results.upper_bound else ""
    text = (
        f"simulated: {ranks(last.world_size)} with {last.strategy} take a step of {quantity(last.step_ms, 'ms')}, "
        f"efficiency {bound}{percent(last.efficiency)}"
    )
    if results.backtest:
        worst = max(results.backtest, key=lambda test: abs(test.error))
        text += f"; the same simulation of what the run measured is {worst.error:+.1%} off at the worst"
    return sentence(text)


def side_by_side(simulations: Sequence[SimulationResults]) -> Document:
    """The largest world size of each simulation in a row, against the first."""
    last = [results.points[-1] for results in simulations]
    first = last[0].samples_per_s
    rows = tuple(
        (
            results.topology,
            p.strategy,
            str(p.world_size),
            quantity(p.step_ms),
            cell(p.efficiency, 100),
            "-" if first is None or p.samples_per_s is None else f"{p.samples_per_s.value / first.value:.3f}",
            "-" if p.memory is None else f"{p.memory.peak_bytes / GB:.1f}",
            "-" if p.usd_per_million_samples is None else f"{p.usd_per_million_samples:.4g}",
        )
        for results, p in zip(simulations, last, strict=True)
    )
    columns = heads(
        "machine",
        "parallel",
        "ranks",
        ("step", "ms"),
        ("efficiency", "%"),
        "samples/s over the first",
        ("peak", "GB"),
        ("a million samples", "USD"),
    )
    table = Table(columns=columns, rows=rows, label="Simulated", note="every figure is simulated")
    return Document(
        title="side by side, SIMULATED", answer="", sections=(Section(title="simulated", blocks=(table,)),)
    )


def ranking(meshes: RankedMeshes) -> Document:
    """Which mesh comes first, why the others are slower, and how far that may be off."""
    return Document(
        title=f"{meshes.model} on {meshes.topology}, all meshes, SIMULATED",
        answer=_fastest(meshes),
        sections=tuple(_ranked(meshes)),
    )


def _fastest(meshes: RankedMeshes) -> str:
    if not meshes.ranked:
        why = meshes.left_out[0].why if meshes.left_out else "there is no mesh"
        return sentence(f"simulated: no mesh gave a step; {why}")
    first, *others = meshes.ranked
    text = f"simulated: of {len(others) + 1} meshes of {ranks(first.world_size)} {_named(first)} is fastest"
    near = [mesh for mesh in others if not any(o.apart for o in others[: others.index(mesh) + 1])]
    if near:
        text += f"; the ranges of {', '.join(map(_named, near))} meet its own, one after the other"
    if meshes.backtest:
        worst = max(meshes.backtest, key=lambda test: abs(test.error))
        text += f"; the same simulation of what the run measured is {worst.error:+.1%} off at the worst"
    return sentence(text)


def _ranked(meshes: RankedMeshes) -> Iterator[Section]:
    yield Section(title="simulated", blocks=(_meshes(meshes),))
    if meshes.left_out:
        reasons = tuple(f"{_named(mesh)}: {mesh.why}" for mesh in meshes.left_out)
        yield Section(title="meshes without a step, simulated", blocks=(lines(*reasons, look="prose"),))
    yield backtest(meshes.backtest, meshes.backtest_missing)
    yield from _limits(meshes)


def _meshes(meshes: RankedMeshes) -> Table:
    rows = tuple(
        (
            str(place),
            _named(mesh),
            quantity(mesh.step_ms),
            value_of(mesh.samples_per_s),
            f"{mesh.over_first:.3f}",
            NONE if mesh.peak_bytes is None else f"{mesh.peak_bytes / GB:.1f}",
            (mesh.slower_by or NONE) if place > 1 else NONE,
        )
        for place, mesh in enumerate(meshes.ranked, 1)
    )
    columns = heads(
        "", "mesh", ("step", "ms"), "samples/s", "over the first", ("peak", "GB"), "slower than the one above"
    )
    bound = "; real clusters are slower than this (upper bound)" if meshes.upper_bound else ""
    return Table(
        columns=columns,
        rows=rows,
        label="Meshes",
        note=f"by samples a second; ±: what links and inputs leave open{bound}",
    )


def _named(mesh: RankedMesh | MeshLeftOut) -> str:
    degrees = {"replicate": mesh.replicate, "shard": mesh.shard, "tensor": mesh.tensor}
    several = ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    return f"{mesh.strategy} ({several})"


def chrome(tasks: Sequence[Task], topology: str, world_size: int) -> str:
    """A simulated step of one rank: a thread for each stream of the device; waits for peers are events of their own."""
    events: list[dict[str, Any]] = []
    name = f"SIMULATED: one rank of {world_size} on {topology}"
    events.append({"ph": "M", "pid": 0, "name": "process_name", "args": {"name": name}})
    for stream in sorted({task.stream for task in tasks}):
        label = {"name": f"stream {stream}"}
        events.append({"ph": "M", "pid": 0, "tid": stream, "name": "thread_name", "args": label})
    for task in tasks:
        met = task.met_ns or task.start_ns
        for what, begin, end in ((f"wait {task.name}", task.start_ns, met), (task.name, met, task.end_ns)):
            if end > begin:
                times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
                place = {"pid": 0, "tid": task.stream, "args": {"bytes": task.bytes}}
                events.append({"ph": "X", "name": what, **times, **place})
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})
