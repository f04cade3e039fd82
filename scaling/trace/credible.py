"""Which times of a trace can have been measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from scaling.trace.columns import Columns
from scaling.trace.spans import Ints

SLACK_NS = 1_000_000_000
"""An event that ends so much later than anything else begins was not measured but made up."""
APART_NS = 3_600_000_000_000
"""Nor does one belong to a trace from which it lies an hour away."""


class Credible:
    """Which times of a file can be true, and their origin."""

    def __init__(self, begins: NDArray[np.float64]) -> None:
        begins = begins[np.isfinite(begins)]
        middle = len(begins) // 2
        self.middle = float(np.partition(begins, middle)[middle]) if len(begins) else 0.0
        near = begins[np.abs(begins - self.middle) < APART_NS / 1e3]
        self.base = float(near.min()) if len(near) else 0.0
        length = float(near.max()) - self.base if len(near) else 0.0
        self.limit = length + max(SLACK_NS / 1e3, length)

    def __call__(self, begin: Any, dur: Any) -> Any:
        """Whether events that begin at `begin` and last `dur`, us, can have been measured."""
        near = abs(begin - self.middle) < APART_NS / 1e3
        return near & (dur >= 0) & (begin - self.base + dur <= self.limit)

    def keep(self, columns: Columns) -> int:
        """Leave the others out; how many they were."""
        true = self(columns["ts"], columns["dur"])
        for name in columns:
            columns[name] = columns[name][true]
        return int((~true).sum())

    def ns(self, us: float) -> int:
        """A time as ns since the origin."""
        return round((us - self.base) * 1e3)

    def spans(self, columns: Columns) -> dict[str, Ints]:
        """Begin and end as ns since the origin."""
        begin = np.rint((columns["ts"] - self.base) * 1e3).astype(np.int64)
        return {"begin": begin, "end": begin + np.rint(columns["dur"] * 1e3).astype(np.int64)}
