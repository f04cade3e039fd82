"""Several runs as one table."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import Measured
from scaling.analysis.results.size import AtSize


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
