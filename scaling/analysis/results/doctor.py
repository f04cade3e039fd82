"""The results of the doctor: frozen dataclasses, one for each object of doctor.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from scaling.analysis.results import Measured, RooflineResult
from scaling.analysis.results.run import RunResults
from scaling.records.checkup import ParityErrors, PhaseMemory, RankFacts

SCHEMA = 1

ERROR = "error"
"""Wrong, or certain to distort measurements."""
WARNING = "warning"
"""Costs speed or accuracy in some workloads."""
SEVERITIES = (ERROR, WARNING)


class Finding(NamedTuple):
    """What a rule finds wrong with a rank or a device, and what to do about it."""

    what: str
    remedy: str
    severity: str = WARNING


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
    """One value of a fact, and the ranks that have it."""

    value: Any
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact that differs between ranks; the most common value first."""

    key: str
    values: tuple[Differing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairBandwidth:
    """Bandwidth between two ranks while no other pair communicates."""

    first: int
    second: int
    same_host: bool
    peer_access: bool | None
    bytes: int
    bandwidth_gbit_s: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence(ParityErrors):
    """One precision on one rank (or one group of ranks with the same bits) against float64, and its speed.

    Loss and weights are those of the last step, gradients those of the first.
    """

    precision: str
    device: str
    ranks: tuple[int, ...]
    """Ranks with exactly these numbers; empty for the machine of the parity file."""
    repeatable: bool
    scale: float
    not_finite: int
    flushed: int
    step_ms: Measured | None
    speedup: Measured | None
    """Steps a second against fp32 on the same rank."""
    peak_bytes: int | None
    parts_at: str = ""
    """The first layer whose output differs from the first group's, and by how much; empty for the first group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityTable:
    """Equal seeded steps in every precision on every rank."""

    steps: int
    batch: int
    table: tuple[Divergence, ...]
    file: str | None
    """The parity file that was written, or compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePeak(PhaseMemory):
    """Memory at the end of a phase of the first step, on the rank that holds most then."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(RunResults):
    """The whole of doctor.json."""

    ranks: tuple[RankFacts, ...]
    differences: tuple[Difference, ...]
    problems: tuple[Problem, ...]
    pairs: tuple[PairBandwidth, ...]
    roofline: RooflineResult | None
    parity: ParityTable | None
    memory: tuple[PhasePeak, ...] = ()
    others: tuple[str, ...] = ()
    """What collectives reach on others' machines of this kind (docs/links.md)."""

    @property
    def exit_code(self) -> int:
        """1 on a problem of severity error."""
        return int(any(p.severity == ERROR for p in self.problems))
