"""Rank the meshes of one world size by what each would do, and say why the next one is slower. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from scaling.analysis.results.measured import Measured
from scaling_simulator.simulate.results import (
    AtMesh,
    MeshLeftOut,
    RankedMesh,
    RankedMeshes,
    SimulatedPoint,
    SimulationResults,
)

NS_MS = 1e6
COMPUTE, HOST = "compute", "host"
SAME = 1e-3
"""A difference that is a smaller share of a step needs no reason."""


def ranked(simulations: Sequence[SimulationResults]) -> RankedMeshes:
    """The largest world size of each simulation, the most samples a second first.

    Meshes differ in how many ranks share a sample, so steps are compared for the same samples.
    """
    last = [results.points[-1] for results in simulations]
    ran = sorted((p for p in last if p.samples_per_s is not None), key=_rate, reverse=True)
    meshes = []
    for place, p in enumerate(ran):
        before = ran[place - 1] if place else None
        meshes.append(
            RankedMesh(
                **_mesh(p),
                step_ms=p.step_ms,
                samples_per_s=p.samples_per_s,
                over_first=_rate(p) / _rate(ran[0]),
                apart=before is not None and _apart(before, p),
                peak_bytes=p.memory.peak_bytes if p.memory else None,
                slower_by=slower_by(before, p) if before else None,
            )
        )
    left_out = tuple(
        MeshLeftOut(
            **_mesh(p), why="does not fit into memory" if p.fits is False else (p.why or "the program failed")
        )
        for p in last
        if p.samples_per_s is None
    )
    first = simulations[0]
    return RankedMeshes(
        simulated=True,
        model=first.model,
        topology=first.topology,
        accelerator=first.accelerator,
        run=first.run,
        upper_bound=any(results.upper_bound for results in simulations),
        ranked=tuple(meshes),
        left_out=left_out,
        inputs=tuple(dict.fromkeys(line for results in simulations for line in results.inputs)),
        missing=first.missing,
        warnings=tuple(dict.fromkeys(line for results in simulations for line in results.warnings)),
        backtest=first.backtest,
        backtest_missing=first.backtest_missing,
    )


def _mesh(p: SimulatedPoint) -> dict[str, Any]:
    return {field.name: getattr(p, field.name) for field in fields(AtMesh)}


def slower_by(better: SimulatedPoint, worse: SimulatedPoint) -> str | None:
    """What grows most from one mesh to the next, for the samples of the better one's step; None where nothing does."""
    before, after = _parts(better), _parts(worse)
    grown = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in {**before, **after}}
    name, by = max(grown.items(), key=lambda item: item[1])
    ms = by * _samples(better)
    if better.step_ms is None or ms < SAME * better.step_ms.value:
        return None
    why = {COMPUTE: "kernels take longer", HOST: "the host launches longer"}.get(
        name, f"waits longer for {name}"
    )
    return f"{why}, {ms:.3g} ms a step's samples"


def _parts(p: SimulatedPoint) -> Mapping[str, float]:
    """ms a sample: of kernels, of exposed transfers by kind and axis, and of neither."""
    samples = _samples(p)
    parts = {COMPUTE: (p.compute_ms or 0.0) / samples, HOST: (p.idle_ms or 0.0) / samples}
    for transfer in p.transfers:
        name = f"{transfer.kind.replace('_', '-')} over {transfer.axis}"
        parts[name] = parts.get(name, 0.0) + transfer.exposed_ms / samples
    return parts


def _samples(p: SimulatedPoint) -> float:
    """Samples of a step of all ranks."""
    return float(p.batch * p.replicate * p.shard)


def _rate(p: SimulatedPoint) -> float:
    assert p.samples_per_s is not None
    return p.samples_per_s.value


def _apart(better: SimulatedPoint, worse: SimulatedPoint) -> bool:
    """Whether the ranges that the inputs leave open do not meet."""

    def ends(rate: Measured | None) -> tuple[float, float]:
        assert rate is not None
        return (rate.value if rate.low is None else rate.low, rate.value if rate.high is None else rate.high)

    return ends(worse.samples_per_s)[1] < ends(better.samples_per_s)[0]
