"""A run under settings that were not measured."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results import Assumption, Backtest, PredictedPoint, Prediction
from scaling.plain import plain
from scaling.report.key_figures import PREDICTED, waterfall_bars
from scaling.report.model import Column, Document, Lines, Section, lines, named, section, tabulated
from scaling.report.text import cell, percent, quantity, ranks, sentence, value_of


def document(prediction: Prediction) -> Document:
    """What to expect, how well the model predicts what was measured, and what it assumes."""
    run = prediction.run
    return Document(
        title=f"{run.model} on {prediction.topology}, predicted",
        answer=_answer(prediction),
        sections=tuple(_sections(prediction)),
    )


def _sections(prediction: Prediction) -> Iterator[Section]:
    yield section("", _conditions(prediction))
    yield section("predicted", tabulated(prediction.points, POINTS, label="Predicted", note=NOTE))
    last = prediction.points[-1]
    if last.loss is not None and last.world_size > 1:
        title = f"{ranks(last.world_size)}, predicted: a step of {quantity(last.step_ms, 'ms')}"
        yield section(title, waterfall_bars(last.loss, last.efficiency, PREDICTED))
    why_none = lines(prediction.backtest_missing or "", look="prose", tone="warning")
    yield section(
        "back-test: each measured world size, predicted from the others",
        tabulated(prediction.backtest, BACKTEST, label="Back-test"),
        why_none,
        title_alone=True,
    )
    leans = (*map(_leans, prediction.assumptions), *prediction.notes)
    at = max((p.world_size for p in prediction.points if p.step_ms), default=0)
    where = f", and what {ranks(at)} would be otherwise" if prediction.assumptions else ""
    yield section(f"what this leans on{where}", lines(*leans, look="warnings"))


def _leans(assumption: Assumption) -> str:
    """An assumption, what is put in its place, and what that does to the answer."""
    step = f"step {_percent(assumption.step_change)} %"
    if assumption.efficiency_change is None:
        return f"{assumption.what}; {assumption.varied}: {step}"
    return f"{assumption.what}; {assumption.varied}: {step}, efficiency {_percent(assumption.efficiency_change)} points"


def _percent(change: float) -> str:
    """A fraction as `+3.1`, in percent; 0 where it would not show."""
    return "0" if abs(change) < 0.0005 else f"{change * 100:+.1f}"


def _conditions(prediction: Prediction) -> Lines:
    """Which run, and what was asked."""
    run = prediction.run
    unreal = f", {run.unreal}" if run.unreal else ""
    asked = ", ".join(prediction.changes) or "nothing changed"
    return named(
        ("run", f"{run.model} on {run.topology} ({run.id}{unreal})"),
        ("predicted", f"{asked}; topology {prediction.topology}"),
        look="conditions",
    )


POINTS: tuple[Column[PredictedPoint], ...] = (
    ("ranks", "", lambda p: str(p.world_size)),
    ("hosts", "", lambda p: str(p.hosts)),
    ("step", "ms", lambda p: quantity(p.step_ms)),
    ("samples", "1/s", lambda p: value_of(p.samples_per_s)),
    ("speedup", "", lambda p: value_of(p.speedup)),
    ("efficiency", "%", lambda p: cell(p.efficiency, 100)),
)
BACKTEST: tuple[Column[Backtest], ...] = (
    ("ranks", "", lambda t: str(t.world_size)),
    ("from", "", lambda t: str(t.from_world_size)),
    ("predicted", "ms", lambda t: cell(t.predicted_ms)),
    ("measured", "ms", lambda t: cell(t.measured_ms)),
    ("error", "%", lambda t: f"{t.error * 100:+.1f}"),
    ("held", "", lambda t: "yes" if t.held else "no"),
)
NOTE = "±: half of the 95 % interval, the model's own error in it"


def _answer(prediction: Prediction) -> str:
    """What to expect at the largest world size, and how far the model can be trusted."""
    last = prediction.points[-1]
    if last.cannot:
        return sentence(f"cannot say: {plain(last.cannot)}")
    claims = [
        f"{ranks(last.world_size)}: a step of {quantity(last.step_ms, 'ms')}, efficiency {percent(last.efficiency)}"
    ]
    if last.step_ms is not None and last.step_ms.interval is None:
        claims.append(
            "how sure that is, is not known: the run has too few rounds with details for an interval"
        )
    if prediction.backtest:
        worst = max(prediction.backtest, key=lambda test: abs(test.error))
        claims.append(
            f"left out and predicted, {ranks(worst.world_size)} of this run came out {worst.error:+.1%} off"
        )
    claims += [f"{ranks(p.world_size)}: cannot say, {plain(p.cannot)}" for p in prediction.points if p.cannot]
    return " ".join(sentence(part) for part in claims)
