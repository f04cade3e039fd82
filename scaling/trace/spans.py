"""Sets of time as sorted, disjoint intervals [begin, end); integer ns in numpy columns.

What is counted where two things happen at once follows from unions and differences of such sets, so no
instant is counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint intervals in order; those that touch are one."""

    begin: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.begin)

    @property
    def length(self) -> int:
        """Their whole length."""
        return int((self.end - self.begin).sum())

    def before(self, instants: Ints) -> Ints:
        """How much of the set lies before each instant: its distribution function."""
        if not len(self):
            return np.zeros(len(instants), dtype=np.int64)
        done = np.concatenate([[0], np.cumsum(self.end - self.begin)])
        at = np.searchsorted(self.begin, instants, side="right")
        inside = np.minimum(instants, self.end[at - 1]) - self.begin[at - 1]
        return np.where(at > 0, done[at - 1] + np.where(at > 0, inside, 0), 0).astype(np.int64)

    def within(self, borders: Ints) -> Ints:
        """Its length in each window between neighbouring borders."""
        return np.diff(self.before(borders))

    def overlap(self, begin: Ints, end: Ints) -> Ints:
        """How much of each interval [begin, end) lies in the set."""
        return self.before(end) - self.before(begin)


EMPTY = Spans(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def union(*sets: Spans) -> Spans:
    """Instants that are in any of the sets."""
    return merged(np.concatenate([s.begin for s in sets]), np.concatenate([s.end for s in sets]))


def merged(begin: Ints, end: Ints) -> Spans:
    """The union of intervals in any order; empty ones vanish."""
    real = end > begin
    begin, end = begin[real], end[real]
    if not len(begin):
        return EMPTY
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], begin[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Spans(begin[first], end[last])


def minus(a: Spans, b: Spans) -> Spans:
    """Instants of `a` that are not in `b`."""
    if not len(a) or not len(b):
        return a
    edges = np.unique(np.concatenate([a.begin, a.end, b.begin, b.end]))
    low, high = edges[:-1], edges[1:]
    keep = (a.overlap(low, high) > 0) & (b.overlap(low, high) == 0)
    return merged(low[keep], high[keep])


def common(a: Spans, b: Spans) -> Spans:
    """Instants that are in both."""
    return minus(a, minus(a, b))
