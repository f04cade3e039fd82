"""The simulation that a worker is asked for, at one world size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from scaling.analysis.statistics.rounds import latest
from scaling.errors import InputError
from scaling.spec.parallel import Mesh, MeshError, Parallel
from scaling.spec.run import Spec
from scaling.spec.simulation import LinkCurve, Physics, Simulation
from scaling.spec.topology import Topology
from scaling_simulator.simulate import links
from scaling_simulator.simulate.inputs import Inputs

EXPECTED, FAVOURABLE, UNFAVOURABLE = "expected", "favourable", "unfavourable"
CAUSES = ("persistent", "walk", "neighbours", "slowdown")
"""Fields of Inputs that make ranks slower."""
ALIKE, UNDISTURBED, UNCROWDED, UNDELAYED = "ranks alike", "undisturbed", "uncrowded", "undelayed"
"""Physics of the waterfall. Each has one cause less than the one before: spread of ranks, slowdown by communication,
neighbours, latency."""


def mesh_of(parallel: Parallel, world_size: int) -> Mesh:
    """The mesh of a strategy at a world size. InputError where its degrees do not fit."""
    try:
        return parallel.mesh(world_size)
    except MeshError as error:
        raise InputError(f"parallel={parallel.name}: {error}") from error


def batch_of(spec: Spec, mesh: Mesh) -> int:
    """Samples a rank and step; the ranks that share a layer see the same ones. InputError where they do not divide."""
    if spec.mode == "weak":
        return spec.batch_per_rank
    whole, ranks = spec.global_batch or 0, mesh.data_parallel
    if whole % ranks:
        raise InputError(f"global_batch={whole}: does not divide by {ranks} ranks with different samples")
    return whole // ranks


def simulation(
    spec: Spec,
    mesh: Mesh,
    inputs: Inputs,
    batch: int,
    *,
    rank: int = 0,
    own_links: tuple[LinkCurve, ...] | None = None,
    whole: bool = True,
) -> Simulation:
    """What a worker is asked for. `own_links`: curves that a run measured, in place of the topology's.

    `whole`: with intervals and the causes of the loss, else the expected step alone.
    """
    return Simulation(
        spec=spec,
        rank=rank,
        batch=batch,
        mesh=mesh,
        chip=inputs.chip,
        capacity_bytes=inputs.capacity_bytes,
        host_bytes_s=inputs.host_bytes_s,
        launch_us=inputs.launch_us,
        kernels=inputs.kernels,
        physics=_physics(spec.topology, mesh, inputs, own_links, whole=whole and mesh.size > 1),
        timeline=whole and mesh.size > 1,
    )


def _physics(
    topology: Topology, mesh: Mesh, inputs: Inputs, own: tuple[LinkCurve, ...] | None, *, whole: bool
) -> tuple[Physics, ...]:
    axes = mesh.dimensions
    doubt, factor = (0.0, 1.0) if own is not None or not axes else links.doubts(topology, axes)
    last = latest(mesh.size)

    def setting(
        name: str, causes: Mapping[str, float], *, bandwidth: float = 1, latency: float = 1
    ) -> Physics:
        curves = (
            own if own is not None else links.curves(topology, axes, bandwidth=bandwidth, latency=latency)
        )
        crowd = causes["neighbours"] if mesh.size > 1 else 0.0
        return Physics(
            name=name,
            links=curves,
            wires=links.shared(topology, axes),
            slowdown=causes["slowdown"],
            stretch=(1 + last * causes["persistent"]) * (1 + crowd),
            spread=last * causes["walk"],
        )

    def at(end: str) -> dict[str, float]:
        found = {cause: getattr(inputs, cause) for cause in CAUSES}
        return {c: 0.0 if one is None else max(0.0, getattr(one, end)) for c, one in found.items()}

    causes = at("value")
    expected = setting(EXPECTED, causes)
    if not whole:
        return (expected,)
    found = [
        expected,
        setting(FAVOURABLE, at("low"), bandwidth=1 + doubt, latency=1 / factor),
        setting(UNFAVOURABLE, at("high"), bandwidth=1 - doubt, latency=factor),
    ]
    for name, without in (
        (ALIKE, ("persistent", "walk")),
        (UNDISTURBED, ("slowdown",)),
        (UNCROWDED, ("neighbours",)),
    ):
        known = any(causes[cause] for cause in without)
        causes = {cause: 0.0 if cause in without else value for cause, value in causes.items()}
        if known:
            found.append(setting(name, causes))
    last_one = setting(UNDELAYED, causes, latency=0 if own is None else 1)
    found.append(last_one if own is None else replace(last_one, links=undelayed(own)))
    return tuple(found)


def undelayed(curves: tuple[LinkCurve, ...]) -> tuple[LinkCurve, ...]:
    """Measured curves without what the smallest message takes."""
    return tuple(
        replace(
            curve,
            points=tuple((size, max(0.0, us - curve.points[0][1])) for size, us in curve.points),
        )
        for curve in curves
    )
