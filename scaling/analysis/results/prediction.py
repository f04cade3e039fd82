"""A prediction of a run under settings that were not measured.

Steps of a real program on a simulated machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured
from scaling.analysis.results.point import KeyFigures, Loss
from scaling.analysis.results.run import RunResults
from scaling.settings.simulation import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint(KeyFigures):
    """One world size under other settings."""

    from_world_size: int
    """The measured world size that the prediction starts from."""
    cannot: str | None = None
    """Why nothing can be predicted; the figures are None then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest(AtSize):
    """A measured world size, predicted from the other ones."""

    from_world_size: int
    predicted_ms: Measured
    measured_ms: Measured
    error: float
    """Predicted over measured, minus 1."""
    held: bool
    """Whether the predicted interval contains the measured value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """Something that a prediction takes to be so, and what the answer would be otherwise."""

    what: str
    varied: str
    """What is put in its place."""
    step_change: float
    """The step then, over the predicted one, minus 1."""
    efficiency_change: float | None
    """The efficiency then, minus the predicted one; None where only the step's error is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(RunResults):
    """How a run would do under other settings, and how well the same model predicts what the run measured."""

    changes: tuple[str, ...]
    topology: str
    points: tuple[PredictedPoint, ...]
    half_at: int | None
    """The smallest world size with an efficiency below one half; None: there is none up to `looked_up_to`."""
    looked_up_to: int
    backtest: tuple[Backtest, ...]
    backtest_missing: str | None
    """Why there is no back-test."""
    assumptions: tuple[Assumption, ...]
    """At the largest world size that is predicted, the one with the largest effect first."""
    notes: tuple[str, ...]
    """What else limits the prediction, without a known effect."""


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
