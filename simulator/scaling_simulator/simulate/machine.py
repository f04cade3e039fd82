"""What a simulation leans on: data sheets alone, or what a run measured, with its back-test."""

from __future__ import annotations

from scaling.analysis.results.prediction import SimulatedBacktest
from scaling.cli.loaded import Run, links_of, tables_of
from scaling.config.simulation import Asked
from scaling.launchers.simulate import simulate
from scaling.records.launch import Launches
from scaling.spec.parallel import Mesh, Parallel
from scaling.spec.simulation import LinkCurve
from scaling_simulator.simulate import links, measured
from scaling_simulator.simulate.ask import batch_of, mesh_of, simulation
from scaling_simulator.simulate.inputs import assumed


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
        return links.sources(self._topology, mesh.dimensions)

    def missing(self, parallel: Parallel) -> tuple[str, ...]:  # noqa: ARG002
        """What was not measured of a strategy."""
        return self.inputs.missing


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
            tables_of(run),
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
        return measured.curves(self._topology, self._own, links_of(self._run), mesh)

    def links_said(self, mesh: Mesh) -> tuple[str, ...]:
        """Where the links' figures are from."""
        if self._topology.backend == "nccl":
            return super().links_said(mesh)
        same = self._topology == self._own
        said = "as the run measured them" if same else "the run's curve, with the rate that was asked for"
        if measured.inside_unknown(self._topology, self._own, links_of(self._run), mesh):
            said += "; within a host: not known, taken to be like the link between hosts"
        return (said,)

    def missing(self, parallel: Parallel) -> tuple[str, ...]:
        """What was not measured of a strategy; over a host's back end, what its cores spend on one that did not run."""
        ran = [spec.parallel.name for spec in self._run.plan.spec.strategies]
        unknown = measured.of_the_cores(parallel, ran) if self._topology.backend != "nccl" else None
        return (*self.inputs.missing, *([unknown] if unknown else []))

    def test(self) -> None:
        """Simulate what the run measured, on its own machine, and compare."""
        points = [p for p in self._run.analysis.points if p.arms_ms is not None and p.step_ms is not None]
        found = []
        for p in points:
            assert p.step_ms is not None
            spec = self._run.plan.spec
            mesh = mesh_of(spec.parallel, p.world_size)
            ask = simulation(
                spec, mesh, self.inputs, batch_of(spec, mesh), own_links=self.links(mesh), whole=False
            )
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
