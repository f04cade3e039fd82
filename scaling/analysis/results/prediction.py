"""A run under settings that were not measured."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.measured import Measured
from scaling.analysis.results.point import Loss
from scaling.analysis.results.run import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedPoint:
    """One world size under other settings. Numbers are None where `cannot` says why nothing can be said."""

    world_size: int
    hosts: int
    from_world_size: int
    """What it was predicted from."""
    step_ms: Measured | None = None
    samples_per_s: Measured | None = None
    speedup: Measured | None = None
    efficiency: Measured | None = None
    loss: Loss | None = None
    cannot: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """A measured world size, predicted as if it had been left out."""

    world_size: int
    from_world_size: int
    predicted_ms: Measured
    measured_ms: Measured
    error: float
    """Predicted over measured, less 1."""
    held: bool
    """Whether the predicted interval holds the measured value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a run would take under other settings, and how well the same model tells what the run did measure."""

    schema: int
    run: RunInfo
    changes: tuple[str, ...]
    topology: str
    points: tuple[PredictedPoint, ...]
    half_at: int | None
    """The first world size with an efficiency below a half; None: none up to `looked_up_to`."""
    looked_up_to: int
    backtest: tuple[Backtest, ...]
    backtest_missing: str | None
    """Why there is no back-test."""
    notes: tuple[str, ...]
