"""What physics allows of a result, said in other words than scaling.analysis.invariants has for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

from scaling.analysis.results import Analysis, Comm, Measured, StepParts


def numbers(value: Any, name: str = "") -> Iterator[tuple[str, type, Measured]]:
    """Every measured number of a result, with the name of its field and the type that it stands in."""
    if isinstance(value, tuple):
        for one in value:
            yield from numbers(one, name)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            one = getattr(value, field.name)
            if isinstance(one, Measured):
                yield field.name, type(value), one
            else:
                yield from numbers(one, field.name)


def assert_possible(analysis: Analysis) -> None:
    """What physics allows, said here again in other words than the module's."""
    for name, kind, number in numbers(analysis):
        assert math.isfinite(number.value)
        if number.interval:
            low, high = number.interval
            assert low - 1e-6 * abs(low) <= number.value <= high + 1e-6 * abs(high)
        if name in (
            "step_ms",
            "samples_per_s",
            "efficiency",
            "speedup",
            "busbw_gbit_s",
            "time_us",
            "plain",
            "probe",
        ):
            assert number.value > 0, name
        if kind is StepParts:
            assert number.most >= -1e-3
        if kind is Comm and name == "hidden_share":
            assert number.value <= 1 + 1e-6
    for point in analysis.points:
        if point.loss is not None and point.efficiency is not None:
            terms = [getattr(point.loss, f.name) for f in dataclasses.fields(point.loss)]
            total = sum(term.value for term in terms if term is not None)
            assert total == pytest.approx(1 - point.efficiency.value, abs=1e-5)
        if point.efficiency and point.samples_per_s and point.speedup:
            assert point.speedup.value == pytest.approx(
                point.efficiency.value * point.world_size / point.base_world_size
            )
