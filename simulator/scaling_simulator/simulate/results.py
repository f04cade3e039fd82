"""Results of simulations, as `--json` prints them: steps of a real program on a machine that is not there."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured
from scaling.analysis.results.point import Loss
from scaling_simulator.simulation import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTransfers:
    """A step's transfers of one kind over one axis of the mesh."""

    kind: str
    axis: str
    calls: int
    bytes: int
    """nccl-tests' size, a step."""
    busy_ms: float
    exposed_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPoint(AtSize):
    """One world size on a simulated machine."""

    hosts: int
    strategy: str
    replicate: int
    shard: int
    tensor: int
    batch: int
    """Samples a rank and step."""
    status: str
    """`simulated`, `oom` or `failed`."""
    why: str | None = None
    """Why there are no figures."""
    fits: bool | None = None
    """Whether a rank's peak is within the device's memory; None where the program failed for another reason."""
    step_ms: Measured | None = None
    samples_per_s: Measured | None = None
    efficiency: Measured | None = None
    """Against `base_world_size`; an upper bound where `upper_bound` of the whole says so."""
    loss: Loss | None = None
    compute_ms: float | None = None
    exposed_ms: float | None = None
    idle_ms: float | None = None
    """No kernel and no transfer: the host launches."""
    transfers: tuple[SimulatedTransfers, ...] = ()
    memory: Memory | None = None
    capacity_bytes: int | None = None
    usd_per_million_samples: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBacktest(AtSize):
    """A world size that the run measured, simulated on the run's own machine."""

    predicted_ms: float
    measured_ms: Measured
    error: float
    """Simulated over measured, minus 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResults:
    """What the real program would do on a machine that is not there."""

    simulated: bool
    """Always true: no figure but a back-test's `measured_ms` was measured on that machine."""
    model: str
    parameters: int
    precision: str
    topology: str
    accelerator: str
    mode: str
    changes: tuple[str, ...]
    run: str | None
    """The run whose kernels, spread and slowdown came in; None without one."""
    base_world_size: int | None
    upper_bound: bool
    """Whether what makes real clusters slower was not measured, so that efficiency is an upper bound."""
    points: tuple[SimulatedPoint, ...]
    inputs: tuple[str, ...]
    """What came in, and where each figure is from."""
    missing: tuple[str, ...]
    """What was not measured and is left out."""
    warnings: tuple[str, ...]
    backtest: tuple[SimulatedBacktest, ...]
    backtest_missing: str | None
    """Why there is no back-test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMesh(AtSize):
    """A mesh of one world size."""

    strategy: str
    replicate: int
    shard: int
    tensor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMesh(AtMesh):
    """One mesh among all of its world size."""

    step_ms: Measured | None
    samples_per_s: Measured | None
    """Meshes are ranked by it: their steps have different numbers of samples."""
    over_first: float
    """Samples a second over the first mesh's."""
    apart: bool
    """Whether its range and that of the mesh before it do not meet; false for the first."""
    peak_bytes: int | None
    """Memory of a rank at the peak."""
    slower_by: str | None
    """What it has more of than the mesh before it; None for the first, and where nothing grows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLeftOut(AtMesh):
    """A mesh that gave no step."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMeshes:
    """All meshes of one world size on a machine that is not there."""

    simulated: bool
    """Always true, as in SimulationResults."""
    model: str
    topology: str
    accelerator: str
    run: str | None
    upper_bound: bool
    ranked: tuple[RankedMesh, ...]
    left_out: tuple[MeshLeftOut, ...]
    inputs: tuple[str, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    backtest: tuple[SimulatedBacktest, ...]
    backtest_missing: str | None
