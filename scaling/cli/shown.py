"""Results of the Python API that a shell shows as the terminal does, instead of every field."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

from rich.console import Console

from scaling.analysis.results import Comparison, Prediction
from scaling.report.terminal import print_comparison, print_prediction

T = TypeVar("T")
WIDTH = 100
"""Characters of a line."""


class ShownComparison(Comparison):
    """A Comparison whose repr is what `scaling compare` prints."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _drawn(print_comparison, self)


class ShownPrediction(Prediction):
    """A Prediction whose repr is what `scaling predict` prints."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _drawn(print_prediction, self)


def shown_comparison(found: Comparison) -> Comparison:
    """The same comparison, shown as the terminal shows it."""
    return ShownComparison(**{field.name: getattr(found, field.name) for field in fields(found)})


def shown_prediction(found: Prediction) -> Prediction:
    """The same prediction, shown as the terminal shows it."""
    return ShownPrediction(**{field.name: getattr(found, field.name) for field in fields(found)})


def _drawn(draw: Callable[[Console, T], None], result: T) -> str:
    out = io.StringIO()
    draw(Console(file=out, width=WIDTH, color_system=None), result)
    return out.getvalue().rstrip()
