"""Whom each rank waits for in a collective that follows its data, such as a broadcast.

Every rank of a symmetric collective waits for the last one. A broadcast's data come from its root: a root may be done
before a late receiver comes, and a receiver waits for those alone that its data pass. The stamps tell: a rank did not
wait for one that came after it had gone on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.statistics.rounds import Floats

CLOCKS_NS = 200_000.0
"""On a back end of the host, ranks' clocks and stamps may differ by this."""
STAMPS_NS = 20_000.0
"""The same of a device's stamps, beside the error of the comparison of clocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """For each of S steps and R ranks, the ranks that it may have waited for."""

    order: NDArray[np.intp]
    """S x R: the ranks in the order in which they came."""
    count: NDArray[np.intp]
    """S x R: how many of the first in `order`: those that came before it left."""

    @classmethod
    def of(cls, begin: Floats, end: Floats, *, fifo: bool = False, clocks_ns: float = CLOCKS_NS) -> Awaited:
        """From stamps on one clock, S x R; `clocks_ns`: their largest error between two ranks.

        Data move for as long as the rank takes that takes least, since the last to come waits for nobody. On a back end
        that runs one collective after the other, the data of a rank begin to move that long before it goes on, and who
        comes later than that is not waited for. It may come by half of that time later, or by the stamps' error.
        """
        order = np.argsort(begin, axis=1)
        came = np.take_along_axis(begin, order, axis=1)
        if fifo:
            least = np.maximum((end - begin).min(axis=1, keepdims=True), 0.0)
            before = end - least + np.maximum(least / 2, clocks_ns)
        else:
            before = end + clocks_ns
        counts = [np.searchsorted(a, b, side="right") for a, b in zip(came, before, strict=True)]
        return cls(order=order, count=np.maximum(np.reshape(counts, begin.shape), 1))

    @classmethod
    def everybody(cls, at: Floats) -> Awaited:
        """Every rank waits for all; `at`: S x R, when they come."""
        order = np.argsort(at, axis=1)
        return cls(order=order, count=np.full_like(order, at.shape[1]))

    @property
    def after_the_first(self) -> Awaited:
        """The same of all steps but the first."""
        return Awaited(order=self.order[1:], count=self.count[1:])

    def latest(self, times: Floats) -> Floats:
        """S x R: the latest of `times` over the ranks that each one waits for, and of its own."""
        so_far = np.maximum.accumulate(np.take_along_axis(times, self.order, axis=1), axis=1)
        latest: Floats = np.maximum(np.take_along_axis(so_far, self.count - 1, axis=1), times)
        return latest

    def waited(self, begin: Floats, end: Floats) -> Floats:
        """S x R: how long of [begin, end] a rank waited for others to come; the rest of it is transfer."""
        return np.clip(self.latest(begin) - begin, 0.0, np.maximum(end - begin, 0.0))
