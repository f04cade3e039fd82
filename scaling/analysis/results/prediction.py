"""A prediction of a run under settings that were not measured."""

from __future__ import annotations

from dataclasses import dataclass

from scaling.analysis.results.measured import AtSize, Measured
from scaling.analysis.results.point import KeyFigures
from scaling.analysis.results.run import RunResults


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
