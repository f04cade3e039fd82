"""Two runs side by side, several as one table, and a prediction of one under settings that were not measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.results.measured import AtSize, Measured
from scaling.analysis.results.point import KeyFigures, SampleCost
from scaling.analysis.results.run import RunInfo, RunResults


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A throughput ratio as a product: ratio = compute x fabric x left (scaling/analysis/compare/runs.py)."""

    compute: Measured
    """The factor that the devices' compute explains."""
    fabric: Measured
    """The factor that the links explain."""
    left: Measured
    """The factor that neither explains."""
    alone: Measured
    """How many times as fast one rank alone computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComparison:
    """What samples cost in either run. Ratios are B over A: above 1, B gives more samples for the same cost."""

    base: SampleCost = field(default_factory=SampleCost)
    other: SampleCost = field(default_factory=SampleCost)
    per_usd: Measured | None = None
    """Ratio of samples for each dollar."""
    per_joule: Measured | None = None
    """Ratio of samples for each joule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes that Slurm gave one run."""

    run: str
    """The run's id."""
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocations:
    """The allocations that a comparison rests on. With several of each, they have no node in common."""

    base: tuple[Allocation, ...]
    other: tuple[Allocation, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRates:
    """Samples a second of every allocation at one world size, in the order of `Allocations`."""

    base: tuple[Measured | None, ...]
    other: tuple[Measured | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One setting or fact that differs between the runs; None where a run does not have it."""

    of: str
    """`settings`: from the overrides; `environment`: from the machine."""
    key: str
    base: str | None
    other: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio(AtSize):
    """B over A at one world size: throughput ratio (above 1: B is faster)."""

    ratio: Measured | None
    distinguishable: bool
    """Whether the ratio's interval differs from 1 by more than the machine changed between the runs (`control`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparison(Ratio):
    """All that differs at one world size, and by how much."""

    causes: dict[str, Measured | None]
    """Difference of step time B - A by cause, ms: compute and each loss cause."""
    control: Measured | None = None
    """The ratio of one rank alone on the same machine: an A/A pair, which is 1 except for the machine's drift."""
    split: Split | None = None
    """None at one rank, for runs that are not comparable, and where the records of a run are missing."""
    cost: CostComparison = field(default_factory=CostComparison)
    allocations: AllocationRates | None = None
    """What the ratio was made from, where it is one of several allocations of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseComparison(Ratio):
    """One case in two runs, for instance on two devices: B over A."""

    batch: int
    setting: dict[str, str | int | bool]
    """precision and the other settings of its row in `inference` or `training`."""
    samples_per_s: tuple[Measured | None, ...]
    """Throughputs of A and B."""
    usd_per_million_samples: tuple[Measured | None, ...] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side; the first is the base."""

    schema: int
    base: RunInfo
    other: RunInfo
    comparable: bool
    reasons: tuple[str, ...]
    points: tuple[PointComparison, ...]
    roofline: tuple[str, ...] = ()
    """Which ceiling limits each run's step, as sentences."""
    cases: tuple[CaseComparison, ...] = ()
    settings: tuple[SettingDifference, ...] = ()
    """Settings and facts of the machines that differ."""
    one_run: bool = False
    """Whether both are the same run, whose ratios are 1 by definition."""
    contended: tuple[str, ...] = ()
    """How others took processor time from a run, `base: ...` or `other: ...`: its ratios are then hints."""
    batch_unknown: bool = False
    """Whether the samples of a step are not known: ratios are then those of steps, whatever they hold."""
    only_base: tuple[int, ...] = ()
    """World sizes at which the base measured what the other run has not planned."""
    allocations: Allocations | None = None
    """None outside of Slurm, where both ran on the same nodes, and where these are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow(AtSize):
    """One world size (or case) of one run."""

    run: int
    """Number of the run, from 0."""
    name: str = ""
    """The settings as text, `hgx_h100, batch_per_rank=4`; empty where none differ."""
    settings: dict[str, str]
    """Its values of the settings that differ, `unset` where it has none."""
    batch: int | None
    """Samples a rank and optimizer step; None where that is not known."""
    status: str
    samples_per_s: Measured | None = None
    """Throughput of all ranks together."""
    speedup: Measured | None = None
    """Samples a second over those of one rank of the same run; None at one rank."""
    efficiency: Measured | None = None
    cause: str | None = None
    """The largest cause of loss that a verdict names."""
    share: Measured | None = None
    """Share of the step that the cause takes."""
    confidence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepBest:
    """The row with the most samples a second, of runs whose samples are of the same kind."""

    row: int
    """Number of the row, from 0."""
    rivals: tuple[int, ...]
    """Rows whose throughput cannot be distinguished from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Runs under different settings, a row for each run, world size and case."""

    names: tuple[str, ...]
    """What each run is called: its values of the settings that differ."""
    keys: tuple[str, ...]
    """Settings that differ between rows, as overrides name them."""
    rows: tuple[SweepRow, ...]
    best: tuple[SweepBest, ...]
    """One for each kind of sample (model, its settings, task) that several rows have."""
    contended: tuple[str, ...]
    """How others took processor time from a run, each with the run's name."""


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
    backtest: tuple[Backtest, ...]
    backtest_missing: str | None
    """Why there is no back-test."""
    assumptions: tuple[Assumption, ...]
    """At the largest world size that is predicted, the one with the largest effect first."""
    notes: tuple[str, ...]
    """What else limits the prediction, without a known effect."""
