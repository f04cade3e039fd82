"""A prediction as tables and sentences: the same in every renderer."""

from __future__ import annotations

from collections.abc import Sequence

from scaling.analysis.results import Backtest, PredictedPoint, Prediction
from scaling.report.text import cell, percent, plain, quantity, ranks, sentence, value_of


def table(
    points: Sequence[PredictedPoint],
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of predicted world sizes."""
    columns = (
        ("ranks", ""),
        ("hosts", ""),
        ("step", "ms"),
        ("samples", "1/s"),
        ("speedup", ""),
        ("efficiency", "%"),
    )
    rows = tuple(
        (
            str(p.world_size),
            str(p.hosts),
            cell(p.step_ms),
            value_of(p.samples_per_s),
            value_of(p.speedup),
            cell(p.efficiency, 100),
        )
        for p in points
    )
    return columns, rows


def backtest_table(
    tests: Sequence[Backtest],
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of a back-test."""
    columns = (
        ("ranks", ""),
        ("from", ""),
        ("predicted", "ms"),
        ("measured", "ms"),
        ("error", "%"),
        ("held", ""),
    )
    rows = tuple(
        (
            str(t.world_size),
            str(t.from_world_size),
            cell(t.predicted_ms),
            cell(t.measured_ms),
            f"{t.error * 100:+.1f}",
            "yes" if t.held else "no",
        )
        for t in tests
    )
    return columns, rows


def conditions(prediction: Prediction) -> tuple[tuple[str, str], ...]:
    """What was asked of which run, as (name, text)."""
    run = prediction.run
    synthetic = ", SYNTHETIC compute" if run.synthetic else ""
    asked = ", ".join(prediction.changes) or "nothing changed"
    return (
        ("run", plain(f"{run.model} on {run.topology} ({run.id}{synthetic})")),
        ("predicted", plain(f"{asked}; topology {prediction.topology}")),
    )


def answer(prediction: Prediction) -> str:
    """What to expect at the largest world size, where it stops to pay, and how far the model can be trusted."""
    last = prediction.points[-1]
    if last.cannot:
        return sentence(f"cannot say: {plain(last.cannot)}")
    said = [
        f"{ranks(last.world_size)}: a step of {quantity(last.step_ms, 'ms')}, efficiency {percent(last.efficiency)}"
    ]
    if prediction.half_at is None and prediction.looked_up_to:
        said.append(f"efficiency stays above a half up to {ranks(prediction.looked_up_to)}")
    elif prediction.half_at is not None:
        said.append(f"efficiency falls below a half at {ranks(prediction.half_at)}")
    if prediction.backtest:
        worst = max(prediction.backtest, key=lambda test: abs(test.error))
        said.append(
            f"left out and predicted, {ranks(worst.world_size)} of this run came out {worst.error:+.1%} off"
        )
    said += [f"{ranks(p.world_size)}: cannot say, {plain(p.cannot)}" for p in prediction.points if p.cannot]
    return " ".join(sentence(part) for part in said)
