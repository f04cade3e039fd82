"""A collective inside each step in which ranks wait for each other, such as DDP's broadcast of buffers in forward.

A rank's own times leave out that wait. When they are replayed, it ends when the ranks that it is for have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.network.awaited import Awaited
from scaling.analysis.statistics.rounds import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A collective inside each step in which ranks wait for others."""

    at: Floats
    """S x R: when a rank comes to it, in its own time."""
    awaited: Awaited
    transfer: Floats
    """S x R: from when the last of these came until the rank goes on."""

    @classmethod
    def of(cls, begin: Floats, end: Floats, origin: Floats, awaited: Awaited | None = None) -> Barrier:
        """From stamps on one clock, S x R; `origin`: of the ranks' own times. `awaited`: None: as on the host."""
        awaited = awaited or Awaited.of(begin, end)
        transfer = np.maximum(end - awaited.latest(begin), 0.0)
        return cls(at=begin - origin, awaited=awaited, transfer=transfer)

    @classmethod
    def of_all(cls, at: Floats, transfer: float) -> Barrier:
        """Every rank waits for all of them; `at` S x R, `transfer` in ns."""
        return cls(at=at, awaited=Awaited.everybody(at), transfer=np.full_like(at, transfer))

    def passed(self, start: Floats) -> Floats:
        """Where the ranks' own times begin behind it, S x R; `start`: where they begin before it."""
        begin: Floats = self.awaited.latest(start + self.at) + self.transfer - self.at
        return begin

    def with_mean(self, ranks: Sequence[int], peers: NDArray[np.intp]) -> Barrier:
        """Some ranks come when the others do, in the mean."""
        at = self.at.copy()
        at[:, ranks] = at[:, peers].mean(axis=1, keepdims=True)
        return replace(self, at=at)

    def free(self) -> Barrier:
        """The data takes no time."""
        return replace(self, transfer=np.zeros_like(self.transfer))
