"""Simulate a program at each world size, strategy and machine that was asked for."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scaling.analysis.network.ring import NoPathError
from scaling.analysis.results.simulation import SimulatedBacktest, SimulatedPoint, SimulationResults
from scaling.analysis.simulate import links, measured
from scaling.analysis.simulate.ask import mesh_of, simulation
from scaling.analysis.simulate.inputs import Inputs, assumed
from scaling.analysis.simulate.outcome import point, unlike
from scaling.cli.api import Run
from scaling.cli.output import say
from scaling.config.simulation import Asked, to_simulation
from scaling.errors import InputError
from scaling.launchers.simulate import simulate
from scaling.records.launch import Launches
from scaling.records.run import read_config
from scaling.spec.run import Spec
from scaling.spec.simulation import LinkCurve, Mesh, Simulated, Task

CHECKED_MAX = 8
"""Ranks 0 and n-1 are compared at the largest world size up to this one that the mesh's shape allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of one strategy on one machine, and the tasks of the last step for a timeline."""

    results: SimulationResults
    timeline: tuple[Task, ...]
    timeline_ranks: int


class Machine:
    """Inputs and links of a simulation, from data sheets; a run's own where `Measured` is used."""

    run: str | None = None
    backtest: tuple[SimulatedBacktest, ...] = ()
    backtest_missing: str | None = (
        "no run was given, so nothing was measured that a simulation could be compared with"
    )

    def __init__(self, asked: Asked) -> None:
        self.inputs = assumed(asked.spec.topology, asked.spec.precision)
        self._topology = asked.spec.topology

    def links(self, mesh: Mesh) -> tuple[LinkCurve, ...] | None:  # noqa: ARG002
        """Curves in place of the topology's; None: the topology's own."""
        return None

    def links_said(self, mesh: Mesh) -> tuple[str, ...]:
        """Where the links' figures are from."""
        return links.sources(self._topology, mesh.axes)


class Measured(Machine):
    """Inputs and links that a run gives."""

    def __init__(self, asked: Asked, run: Run) -> None:
        self._run, self._topology, self._own = run, asked.spec.topology, run.plan.spec.topology
        launch = next((one for one in reversed(list(Launches(run.folder, run.plan))) if one.kernels), None)
        environment = None if launch is None else launch.environment(0)
        self.inputs = measured.inputs(
            None if launch is None else launch.kernels,
            None if launch is None else launch.roofline,
            run.analysis,
            run.tables,
            self._own,
            self._topology,
            None if environment is None else environment.device_name,
        )
        self.run = f"{run.analysis.run.id} ({run.path})"

    def links(self, mesh: Mesh) -> tuple[LinkCurve, ...] | None:
        """The run's curve, where its back end is the host's."""
        if self._topology.backend == "nccl":
            return None
        return measured.curves(self._topology, self._own, self._run.sources, mesh.axes, mesh.world_size)

    def links_said(self, mesh: Mesh) -> tuple[str, ...]:
        """Where the links' figures are from."""
        if self._topology.backend == "nccl":
            return super().links_said(mesh)
        same = self._topology == self._own
        return ("as the run measured them" if same else "the run's curve, with the rate that was asked for",)

    def test(self, asked: Asked, strategy: str) -> None:
        """Simulate what the run measured, on its own machine, and compare."""
        points = [p for p in self._run.analysis.points if p.arms_ms is not None and p.step_ms is not None]
        found = []
        for p in points:
            assert p.step_ms is not None
            spec = dataclasses.replace(self._run.plan.spec, seed=asked.spec.seed)
            mesh = mesh_of(strategy, p.world_size, spec.topology.ranks_per_host)
            ask = simulation(
                spec, mesh, self.inputs, _batch(spec, mesh), own_links=self.links(mesh), whole=False
            )
            _say(f"back-test: {p.world_size} ranks of {spec.topology.name}")
            answer = simulate(ask)
            if answer.steps:
                ms = answer.steps[0].step_ns / 1e6
                found.append(
                    SimulatedBacktest(
                        world_size=p.world_size,
                        predicted_ms=ms,
                        measured_ms=p.step_ms,
                        error=ms / p.step_ms.value - 1,
                    )
                )
        self.backtest = tuple(found)
        self.backtest_missing = None if found else "the run measured no step that could be simulated"


def simulations(words: Sequence[str]) -> list[Outcome]:
    """Simulate what a command line asks for, without a run before; one outcome for each topology and strategy."""
    found = []
    for each in _topologies(words):
        asked = to_simulation(each)
        machine = Machine(asked)
        found += [_outcome(asked, strategy, machine) for strategy in asked.strategies]
    return found


def from_run(path: str, words: Sequence[str]) -> list[Outcome]:
    """Simulate a measured run's program under other settings, with what the run measured."""
    run = Run(path)
    found = []
    for each in _topologies(words):
        asked = to_simulation(each, read_config(run.folder))
        own = Measured(to_simulation((), read_config(run.folder)), run)
        own.test(asked, "ddp")
        machine = Measured(asked, run)
        machine.backtest, machine.backtest_missing = own.backtest, own.backtest_missing
        found += [_outcome(asked, strategy, machine) for strategy in asked.strategies]
    return found


def _topologies(words: Sequence[str]) -> Iterator[list[str]]:
    """The command line once for each of its topologies."""
    named = next((word for word in words if word.startswith("topology=")), None)
    several = [] if named is None else named.removeprefix("topology=").split(",")
    if len(several) < 2:
        yield list(words)
        return
    for name in several:
        yield [f"topology={name}" if word == named else word for word in words]


def _outcome(asked: Asked, strategy: str, machine: Machine) -> Outcome:
    spec, topology, inputs = asked.spec, asked.spec.topology, machine.inputs
    sizes = sorted({1, *spec.world_sizes})
    meshes = {n: mesh_of(strategy, n, topology.ranks_per_host, **asked.degrees) for n in sizes}
    warnings: dict[str, None] = {}
    base: tuple[Simulated, Mesh, int] | None = None
    points: list[SimulatedPoint] = []
    last: Simulated | None = None
    try:
        asks = [
            simulation(spec, mesh, inputs, _batch(spec, mesh), own_links=machine.links(mesh))
            for mesh in meshes.values()
        ]
        said = machine.links_said(meshes[max(sizes)])
    except NoPathError as error:
        raise InputError(str(error)) from error
    for ask in asks:
        n, mesh, batch = ask.mesh.world_size, ask.mesh, ask.batch
        _say(f"{topology.name} {strategy}: {n} rank{'s' * (n > 1)}")
        found = simulate(ask)
        warnings |= dict.fromkeys(found.warnings)
        if base is None and found.failed is None:
            base = (found, mesh, batch)
        if n in spec.world_sizes:
            last = found if found.steps else last
            points.append(
                point(spec, mesh, batch, found, base, inputs.capacity_bytes, asked.usd_per_gpu_hour)
            )
    _require_alike(asked, strategy, inputs, meshes)
    if topology.note:
        warnings[topology.note] = None
    results = SimulationResults(
        simulated=True,
        model=spec.model.name,
        parameters=max((0 if last is None else last.parameters), 0),
        precision=spec.precision,
        topology=topology.name,
        accelerator=inputs.chip.name,
        mode=spec.mode,
        changes=asked.changes,
        run=machine.run,
        base_world_size=None if base is None else base[1].world_size,
        upper_bound=inputs.upper_bound,
        points=tuple(points),
        inputs=(*inputs.said, *(f"links: {line}" for line in said)),
        missing=inputs.missing,
        warnings=tuple(warnings),
        backtest=machine.backtest,
        backtest_missing=machine.backtest_missing,
    )
    return Outcome(
        results=results,
        timeline=() if last is None else last.timeline,
        timeline_ranks=max(sizes),
    )


def _batch(spec: Spec, mesh: Mesh) -> int:
    """Samples a rank and step; the ranks that share a layer see the same ones. InputError where they do not divide."""
    if spec.mode == "weak":
        return spec.batch_per_rank
    whole, ranks = spec.global_batch or 0, mesh.data_parallel
    if whole % ranks:
        raise InputError(f"global_batch={whole}: does not divide by {ranks} ranks with different samples")
    return whole // ranks


def _require_alike(asked: Asked, strategy: str, inputs: Inputs, meshes: dict[int, Mesh]) -> None:
    """InputError where the first and the last rank of a small world do not do alike, so one cannot stand for all."""
    small = [n for n in meshes if 1 < n <= CHECKED_MAX]
    n = max(small, default=None)
    if n is None:
        shape = meshes[max(meshes)]
        if shape.world_size == 1:
            return
        mesh = _shrunk(shape)
    else:
        mesh = meshes[n]
    asks = [
        simulation(asked.spec, mesh, inputs, _batch(asked.spec, mesh), rank=rank, whole=False)
        for rank in (0, mesh.world_size - 1)
    ]
    first, last = (simulate(ask) for ask in asks)
    if first.failed or last.failed:  # what fails was said at its own world size
        return
    why = unlike(first, last)
    if why is not None:
        raise InputError(
            f"parallel={strategy}: ranks 0 and {mesh.world_size - 1} of {mesh.world_size} {why}, so one rank cannot "
            "stand for all; measure it"
        )


def _shrunk(mesh: Mesh) -> Mesh:
    """The same strategy with two ranks on each axis that has several."""
    return dataclasses.replace(
        mesh,
        replicate=min(2, mesh.replicate),
        shard=min(2, mesh.shard),
        tensor=min(2, mesh.tensor),
    )


def _say(text: str) -> None:
    say(f"simulating {text}", file=sys.stderr)
