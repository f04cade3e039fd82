"""Two runs side by side."""

from __future__ import annotations

from dataclasses import dataclass, field

from scaling.analysis.measured import Measured
from scaling.analysis.results.point import Cost
from scaling.analysis.results.run import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A throughput ratio as a product: ratio = compute x fabric x left (scaling/analysis/split.py)."""

    compute: Measured
    """What the devices make of it."""
    fabric: Measured
    """What the links make of it."""
    left: Measured
    """What neither explains."""
    alone: Measured
    """How many times as fast a rank alone computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComparison:
    """What samples cost in either run. Ratios are B over A, above 1: B gives more for it."""

    base: Cost = field(default_factory=Cost)
    other: Cost = field(default_factory=Cost)
    per_usd: Measured | None = None
    """Samples a dollar."""
    per_joule: Measured | None = None
    """Samples a joule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingDifference:
    """One thing that is not the same in both; None where a run does not have it."""

    of: str
    """`settings`: what was asked; `environment`: what it ran on."""
    key: str
    base: str | None
    other: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PointComparison:
    """B over A at one world size: throughput ratio (above 1: B is faster)."""

    world_size: int
    ratio: Measured | None
    distinguishable: bool
    """Whether the ratio's interval leaves 1 by more than the machine itself moved between the runs (`control`)."""
    causes: dict[str, Measured | None]
    """Difference of step time B - A by cause, ms: compute and each loss cause."""
    control: Measured | None = None
    """The same ratio of a rank alone, on one and the same machine: an A/A pair, 1 but for the machine's drift."""
    split: Split | None = None
    """None at one rank, for runs that are not comparable, and where the records of a run are gone."""
    cost: CostComparison = field(default_factory=CostComparison)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseComparison:
    """One case in two runs, for instance on two devices: B over A."""

    world_size: int
    batch: int
    setting: dict[str, str | int | bool]
    """precision and what else the case is, as its row in `inference` or `training` has it."""
    samples_per_s: tuple[Measured | None, ...]
    """Of A and of B."""
    ratio: Measured | None
    distinguishable: bool
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
    """Which ceiling each of them hits."""
    cases: tuple[CaseComparison, ...] = ()
    settings: tuple[SettingDifference, ...] = ()
    """What else differs, of what was asked and of what it ran on."""
