"""Simulate a program at each world size, strategy and machine that was asked for.

What a simulation leans on: data sheets alone, or what a run measured, with its back-test.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from scaling.analysis.network.curve import NoPathError
from scaling.cli.loaded import Run
from scaling.cli.output import say
from scaling.errors import InputError
from scaling.records.launch import Launches
from scaling.records.run import read_config
from scaling.settings.parallel import Mesh, Parallel
from scaling_simulator.simulate import links, measured
from scaling_simulator.simulate.ask import assumed, batch_of, mesh_of, simulate, simulation
from scaling_simulator.simulate.outcome import point, unlike
from scaling_simulator.simulate.request import Asked, to_simulation
from scaling_simulator.simulate.results import SimulatedBacktest, SimulatedPoint, SimulationResults
from scaling_simulator.simulation import LinkCurve, Simulated, Simulation, Task


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

    def link_sources(self, mesh: Mesh) -> tuple[str, ...]:
        """Where the links' figures are from."""
        return links.sources(self._topology, mesh.dimensions)

    def missing(self, parallel: Parallel) -> tuple[str, ...]:  # noqa: ARG002
        """What was not measured of a strategy."""
        return self.inputs.missing


class Measured(Machine):
    """Inputs and links that a run gives."""

    def __init__(self, asked: Asked, run: Run) -> None:
        self._run, self._topology, self._own = run, asked.spec.topology, run.plan.spec.topology
        launches = reversed(list(Launches(run.folder, run.plan)))
        launch = next((launch for launch in launches if launch.kernels), None)
        environment = None if launch is None else launch.first
        self.inputs = measured.inputs(
            None if launch is None else launch.kernels,
            None if launch is None else launch.roofline,
            run.analysis,
            measured.tables_of(run),
            self._own,
            self._topology,
            None if environment is None else environment.device_name,
            batch=run.plan.spec.batch_per_rank if run.plan.spec.mode == "weak" else None,
        )
        self.run = f"{run.analysis.run.id} ({run.path})"

    def links(self, mesh: Mesh) -> tuple[LinkCurve, ...] | None:
        """The run's curve, where its back end is the host's."""
        if self._topology.backend == "nccl":
            return None
        return measured.curves(self._topology, self._own, measured.links_of(self._run), mesh)

    def link_sources(self, mesh: Mesh) -> tuple[str, ...]:
        """Where the links' figures are from."""
        if self._topology.backend == "nccl":
            return super().link_sources(mesh)
        same = self._topology == self._own
        source = "as the run measured them" if same else "the run's curve, with the rate that was asked for"
        if measured.inside_unknown(self._topology, self._own, measured.links_of(self._run), mesh):
            source += "; within a host: not known, taken to be like the link between hosts"
        return (source,)

    def missing(self, parallel: Parallel) -> tuple[str, ...]:
        """What was not measured of a strategy; over a host's back end, what its cores spend on one that did not run."""
        ran = [spec.parallel.name for spec in self._run.plan.spec.strategies]
        unknown = measured.of_the_cores(parallel, ran) if self._topology.backend != "nccl" else None
        return (*self.inputs.missing, *([unknown] if unknown else []))

    def test(self) -> None:
        """Simulate what the run measured, on its own machine, and compare."""
        points = [p for p in self._run.analysis.points if p.arms_ms is not None and p.step_ms is not None]
        tests = []
        for p in points:
            assert p.step_ms is not None
            spec = self._run.plan.spec
            mesh = mesh_of(spec.parallel, p.world_size)
            try:
                own_links = self.links(mesh)
                ask = simulation(
                    spec, mesh, self.inputs, batch_of(spec, mesh), own_links=own_links, whole=False
                )
            except NoPathError:
                continue  # the run's own links are not known
            answer = simulate(ask)
            if answer.steps:
                ms = answer.steps[0].step_ns / 1e6
                tests.append(
                    SimulatedBacktest(
                        world_size=p.world_size,
                        predicted_ms=ms,
                        measured_ms=p.step_ms,
                        error=ms / p.step_ms.value - 1,
                    )
                )
        self.backtest = tuple(tests)
        self.backtest_missing = None if tests else "the run measured no step that could be simulated"


CHECKED_MAX = 8
"""Ranks 0 and n-1 are compared at the largest world size up to this one, or on a small mesh of the same shape."""
WORKERS_MAX = 4
"""Simulations at once: each takes a core, and up to a GiB."""
BEYOND = "efficiency above 100 %: with sharding a rank updates its part of the parameters, one rank alone all of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of one strategy on one machine, and the tasks of the last step for a timeline."""

    results: SimulationResults
    timeline: tuple[Task, ...]
    timeline_ranks: int
    every_mesh: bool = False
    """Whether it is one of all meshes, which are ranked."""


@dataclass(slots=True)
class _Cache:
    """What simulations of one machine have in common."""

    alike: set[str] = field(default_factory=set)
    """Strategies whose first and last rank were compared."""
    alone: dict[int, Simulated] = field(default_factory=dict)
    """One rank alone, by its batch: it trains the bare module whatever the strategy is."""


def simulations(words: Sequence[str]) -> list[Outcome]:
    """Simulate what a command line asks for, without a run before; one outcome for each topology and strategy."""
    outcomes = []
    alike = set[str]()
    for each in topologies(words):
        asked = to_simulation(each)
        machine, cache = Machine(asked), _Cache(alike=alike)
        outcomes += [_outcome(asked, parallel, machine, cache) for parallel in asked.strategies]
    return outcomes


def from_run(path: str, words: Sequence[str]) -> list[Outcome]:
    """Simulate a measured run's program under other settings, with what the run measured."""
    run = Run(path)
    outcomes = []
    alike = set[str]()
    # The config may leave it to the machine.
    counted = f"topology.ranks_per_host={run.plan.spec.topology.ranks_per_host}"
    home = Measured(to_simulation((counted,), read_config(run.folder)), run)
    home.test()
    for each in topologies(words):
        named = any(word.startswith(("topology=", "topology.ranks_per_host=")) for word in each)
        asked = to_simulation(each if named else [*each, counted], read_config(run.folder))
        machine = Measured(asked, run)
        machine.backtest, machine.backtest_missing = home.backtest, home.backtest_missing
        cache = _Cache(alike=alike)
        outcomes += [_outcome(asked, parallel, machine, cache) for parallel in asked.strategies]
    return outcomes


def topologies(words: Sequence[str]) -> Iterator[list[str]]:
    """The command line once for each of its topologies."""
    named = next((word for word in words if word.startswith("topology=")), None)
    several = [] if named is None else named.removeprefix("topology=").split(",")
    if len(several) < 2:
        yield list(words)
        return
    for name in several:
        yield [f"topology={name}" if word == named else word for word in words]


def _outcome(asked: Asked, parallel: Parallel, machine: Machine, cache: _Cache) -> Outcome:
    """One strategy on one machine."""
    spec = dataclasses.replace(asked.spec, parallel=parallel)
    strategy, topology, inputs = parallel.name, spec.topology, machine.inputs
    if asked.memory_limit_bytes is not None:
        inputs = dataclasses.replace(inputs, capacity_bytes=asked.memory_limit_bytes)
    sizes = sorted({1, *spec.world_sizes})
    meshes = {n: mesh_of(parallel, n) for n in sizes}
    warnings: dict[str, None] = {}
    base: tuple[Simulated, Mesh, int] | None = None
    points: list[SimulatedPoint] = []
    last: Simulated | None = None
    try:
        asks = [
            simulation(spec, mesh, inputs, batch_of(spec, mesh), own_links=machine.links(mesh))
            for mesh in meshes.values()
        ]
        sources = machine.link_sources(meshes[max(sizes)])
        check = None if strategy in cache.alike else _checked_mesh(list(meshes.values()))
        some = asks[-1].batch  # strong scaling's batch need not divide by the ranks that are compared
        ends = [
            simulation(spec, check, inputs, some, rank=rank, own_links=machine.links(check), whole=False)
            for rank in ((0, check.size - 1) if check is not None else ())
            if check is not None
        ]
    except NoPathError as error:
        raise InputError(str(error)) from error
    degrees = f" {parallel.replicate} x {parallel.shard} x {parallel.tensor}" if asked.every_mesh else ""
    _say(f"{topology.name} {strategy}{degrees}: {', '.join(str(ask.mesh.size) for ask in asks)} ranks")

    def known_or_simulated(ask: Simulation) -> Simulated:
        """A single rank's answer is that of the strategies before, for as many samples."""
        if ask.mesh.size > 1:
            return simulate(ask)
        if ask.batch not in cache.alone:
            cache.alone[ask.batch] = simulate(ask)
        return cache.alone[ask.batch]

    with ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), WORKERS_MAX)) as pool:
        answers = list(pool.map(known_or_simulated, (*reversed(asks), *ends)))
    found_ends, answers = answers[len(asks) :], answers[: len(asks)][::-1]
    for ask, simulated in zip(asks, answers, strict=True):
        mesh, batch = ask.mesh, ask.batch
        warnings |= dict.fromkeys(simulated.warnings)
        if base is None and simulated.failed is None:
            base = (simulated, mesh, batch)
        if mesh.size in spec.world_sizes:
            last = simulated if simulated.steps else last
            points.append(
                point(spec, mesh, batch, simulated, base, inputs.capacity_bytes, asked.usd_per_gpu_hour)
            )
    if check is not None:
        _require_alike(strategy, check, found_ends)
        cache.alike.add(strategy)
    if any(p.efficiency is not None and p.efficiency.value > 1 for p in points):
        warnings[BEYOND] = None
    if topology.note:
        warnings[topology.note] = None
    results = SimulationResults(
        simulated=True,
        model=spec.model.name,
        parameters=max(simulated.parameters for simulated in answers),
        precision=spec.precision,
        topology=topology.name,
        accelerator=inputs.chip.name,
        mode=spec.mode,
        changes=asked.changes,
        run=machine.run,
        base_world_size=None if base is None else base[1].size,
        upper_bound=inputs.upper_bound or machine.missing(parallel) != inputs.missing,
        points=tuple(points),
        inputs=(*inputs.notes, *(f"links: {line}" for line in sources)),
        missing=machine.missing(parallel),
        warnings=tuple(warnings),
        backtest=machine.backtest,
        backtest_missing=machine.backtest_missing,
    )
    return Outcome(
        results=results,
        timeline=() if last is None else last.timeline,
        timeline_ranks=max(sizes),
        every_mesh=asked.every_mesh,
    )


def _checked_mesh(meshes: Sequence[Mesh]) -> Mesh | None:
    """The mesh on which the first and the last rank are compared: a small one of the same shape; None for one rank."""
    several = [mesh for mesh in meshes if mesh.size > 1]
    small = [mesh for mesh in several if mesh.size <= CHECKED_MAX]
    if small:
        return small[-1]
    return _shrunk(several[-1]) if several else None


def _require_alike(strategy: str, mesh: Mesh, ends: Sequence[Simulated]) -> None:
    """InputError where the first and the last rank of a small world do not do alike, so one cannot stand for all."""
    if any(end.failed for end in ends):  # what fails was said at its own world size
        return
    why = unlike(*ends)
    if why is not None:
        raise InputError(
            f"parallel={strategy}: ranks 0 and {mesh.size - 1} of {mesh.size} {why}, so one rank cannot "
            "stand for all; measure it"
        )


def _shrunk(mesh: Mesh) -> Mesh:
    """The same strategy with two ranks on each axis that has several."""
    return dataclasses.replace(
        mesh, replicate=min(2, mesh.replicate), shard=min(2, mesh.shard), tensor=min(2, mesh.tensor)
    )


def _say(text: str) -> None:
    say(f"simulating {text}", file=sys.stderr)
