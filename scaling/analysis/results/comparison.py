"""Two runs side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.results.measured import Measured
from scaling.analysis.results.point import SampleCost
from scaling.analysis.results.run import RunInfo
from scaling.analysis.results.size import AtSize


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A throughput ratio as a product: ratio = compute x fabric x left (scaling/analysis/compare/split.py)."""

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
    """The same ratio for one rank alone on the same machine: an A/A pair, which is 1 except for the machine's drift."""
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
    allocations: Allocations | None = None
    """None outside of Slurm, where both ran on the same nodes, and where these are not known."""
