"""Sets of time as sorted, disjoint intervals [begin, end); integer ns in numpy columns.

Unions and differences of such sets say what happens at once, so that no instant is counted twice.
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

    def holds(self, instants: Ints) -> NDArray[np.bool_]:
        """Whether each instant is in the set."""
        if not len(self):
            return np.zeros(len(instants), dtype=bool)
        at = np.searchsorted(self.begin, instants, side="right") - 1
        return (at >= 0) & (instants < self.end[at])

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


def running(*sets: Spans) -> tuple[Ints, Ints, Ints]:
    """(begin, end, code) of every stretch between neighbouring edges; bit k of `code`: set k runs on it."""
    edges = np.concatenate([edge for s in sets for edge in (s.begin, s.end)])
    signs = np.concatenate(
        [np.full(len(s), sign) for k, s in enumerate(sets) for sign in (1 << k, -(1 << k))]
    )
    order = np.argsort(edges, kind="stable")
    edges = edges[order]
    return edges[:-1], edges[1:], np.cumsum(signs[order])[:-1]


def minus(a: Spans, b: Spans) -> Spans:
    """Instants of `a` that are not in `b`."""
    return _where(a, b, 1)


def common(a: Spans, b: Spans) -> Spans:
    """Instants that are in both."""
    return _where(a, b, 3)


def _where(a: Spans, b: Spans, code: int) -> Spans:
    if not len(a) or not len(b):
        return a if code == 1 else EMPTY
    begin, end, found = running(a, b)
    kept = found == code
    return merged(begin[kept], end[kept])
