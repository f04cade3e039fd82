"""A collective inside each step in which ranks wait for each other, such as DDP's broadcast of buffers in forward.

A rank's own times leave out that wait. When they are replayed, it ends when the ranks that it is for have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CLOCKS_NS = 200_000.0
"""Ranks' clocks may differ by this: a rank that goes on this long before another comes may have waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A collective inside each step in which ranks wait for others."""

    at: Floats
    """S x R: when a rank comes to it, in its own time."""
    order: NDArray[np.intp]
    """S x R: the ranks in the order in which they came."""
    awaited: NDArray[np.intp]
    """S x R: how many of the first in `order` a rank may have waited for: those that came before it left."""
    transfer: Floats
    """S x R: from when the last of these came until the rank goes on."""

    @classmethod
    def of(cls, begin: Floats, end: Floats, origin: Floats) -> Barrier:
        """From stamps on one clock, S x R; `origin`: of the ranks' own times."""
        order = np.argsort(begin, axis=1)
        came = np.take_along_axis(begin, order, axis=1)
        left = end + CLOCKS_NS
        counts = [np.searchsorted(a, b, side="right") for a, b in zip(came, left, strict=True)]
        awaited = np.maximum(np.reshape(counts, begin.shape), 1)
        transfer = np.maximum(end - _latest(order, awaited, begin), 0.0)
        return cls(at=begin - origin, order=order, awaited=awaited, transfer=transfer)

    @classmethod
    def of_all(cls, at: Floats, transfer: float) -> Barrier:
        """Every rank waits for all of them; `at` S x R, `transfer` in ns."""
        order = np.argsort(at, axis=1)
        awaited = np.full_like(order, at.shape[1])
        return cls(at=at, order=order, awaited=awaited, transfer=np.full_like(at, transfer))

    def passed(self, start: Floats) -> Floats:
        """Where the ranks' own times begin behind it, S x R; `start`: where they begin before it."""
        begin: Floats = _latest(self.order, self.awaited, start + self.at) + self.transfer - self.at
        return begin

    def with_mean(self, ranks: Sequence[int], peers: NDArray[np.intp]) -> Barrier:
        """Some ranks come when the others do, in the mean."""
        at = self.at.copy()
        at[:, ranks] = at[:, peers].mean(axis=1, keepdims=True)
        return replace(self, at=at)

    def free(self) -> Barrier:
        """The data takes no time."""
        return replace(self, transfer=np.zeros_like(self.transfer))

    def waited(self, begin: Floats, end: Floats) -> Floats:
        """S x R: how long of [begin, end] a rank waited for others to come; the rest of it is transfer."""
        latest = _latest(self.order, self.awaited, begin)
        return np.clip(latest - begin, 0.0, np.maximum(end - begin, 0.0))


def _latest(order: NDArray[np.intp], awaited: NDArray[np.intp], times: Floats) -> Floats:
    """S x R: the latest of `times` over the ranks that each one waits for."""
    so_far = np.maximum.accumulate(np.take_along_axis(times, order, axis=1), axis=1)
    latest: Floats = np.take_along_axis(so_far, awaited - 1, axis=1)
    return latest
