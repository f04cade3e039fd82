"""What the doctor found: frozen results, one class per object of doctor.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scaling.analysis.results import Measured, RooflineResult, RunInfo

SCHEMA = 1

ERROR = "error"
"""Wrong, or certain to falsify what is measured."""
WARNING = "warning"
"""Costs speed or accuracy in some workloads."""
SEVERITIES = (ERROR, WARNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, and what to do about it. `rank` is None where it concerns a host or the whole."""

    what: str
    rank: int | None
    remedy: str
    severity: str
    host: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """One value of a fact, and who has it."""

    value: Any
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact that is not the same everywhere; the commonest value first."""

    key: str
    values: tuple[Differing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank: where it is and what it found."""

    rank: int
    host: int
    stage: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBandwidth:
    """Between two ranks, one pair at a time."""

    first: int
    second: int
    same_host: bool
    peer_access: bool | None
    bytes: int
    bandwidth_gbit_s: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """One precision on one rank (or one group of ranks with the same bits) against float64, and its speed."""

    precision: str
    device: str
    ranks: tuple[int, ...]
    """Those with exactly these numbers; empty: the machine of the parity file."""
    loss_error: float | None
    """|loss - reference| / |reference| after the last step."""
    gradient_error: float | None
    """Of the first step: |g - reference| / |reference| over all parameters."""
    weight_error: float | None
    """After the last step."""
    worst_layer: str
    repeatable: bool
    scale: float
    not_finite: int
    flushed: int
    step_ms: Measured | None
    speedup: Measured | None
    """Steps a second against fp32 on the same rank."""
    peak_bytes: int | None
    parts_at: str = ""
    """The first layer whose output is not that of the first group, with how far it is off; empty for that group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """The same seeded steps in every precision, everywhere."""

    steps: int
    batch: int
    table: tuple[Divergence, ...]
    file: str | None
    """The parity file that was compared with or written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak:
    """Memory of the rank that holds most, by phase of the first step."""

    phase: str
    rank: int
    host_bytes: int
    device_peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """The whole of doctor.json."""

    schema: int
    run: RunInfo
    ranks: tuple[Rank, ...]
    differences: tuple[Difference, ...]
    problems: tuple[Problem, ...]
    pairs: tuple[PairBandwidth, ...]
    roofline: RooflineResult | None
    parity: Parity | None
    memory: tuple[PhasePeak, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 on a problem of severity error."""
        return int(any(p.severity == ERROR for p in self.problems))
