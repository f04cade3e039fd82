"""Collectives under way: launched one after the other, with what each has left of its wire.

The channel's rules (network.channel), for steps in which a later launch depends on when an earlier collective was done:
one of those that a back end runs one after the other begins when the one before it on its communicator is done, and
those that move data over one wire at once have equal parts of it. Ranks are seen each by itself: where the ranks of a
communicator share their wires with other collectives, the last of them says when it is done.

Arrays: S steps, R ranks; times in ns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.network.channel import Channel
from scaling.analysis.statistics.rounds import Floats

Bools = NDArray[np.bool_]

_OVER_NS = 1e-3
"""Less than this is left only by rounding."""


class Flow:
    """The collectives of S steps on R ranks. Launch them in order, and ask for each end once all before it are in."""

    def __init__(self, channel: Channel, shape: tuple[int, int], count: int) -> None:
        """`shape`: S and R. `count`: collectives of a step."""
        self._in_turn = np.array((True,) * count if channel.fifo else channel.in_turn or (False,) * count)
        """K: whether each begins behind those before it on its communicator that do so."""
        self._communicator = np.array(channel.communicator or (0,) * count)
        self._wire = np.array(channel.wire or (0,) * count)
        self._released = np.full((*shape, count), np.inf)
        self._left = np.zeros((*shape, count))
        self.begun: Floats = np.full((*shape, count), np.inf)
        """S x R x K: when each began to move data."""
        self.done: Floats = np.full((*shape, count), np.inf)
        """S x R x K: when each was done; infinite where nobody asked yet."""
        self._free: dict[int, Floats] = {}
        """Until when each wire is busy, where each has one communicator and collectives need only stand in line."""
        pairs = set(zip(self._communicator.tolist(), self._wire.tolist(), strict=True))
        self._in_line = bool(self._in_turn.all()) and len(pairs) == len({wire for _, wire in pairs})
        self._now = np.full(shape, -np.inf)
        self._going: list[int] = []
        """Collectives that are not done on every rank, in the order of launch."""

    def launch(self, k: int, released: Floats, transfer: Floats) -> None:
        """Collective `k` is released at S x R, and has to move data for `transfer`, S x R, if it is alone."""
        if self._in_line:
            wire = int(self._wire[k])
            self.begun[..., k] = np.maximum(released, self._free.get(wire, released))
            self._free[wire] = self.done[..., k] = self.begun[..., k] + transfer
            return
        # A rank may go on a little before its part is counted as over, so nothing is released in the past.
        self._released[..., k] = np.maximum(released, self._now)
        self._left[..., k] = np.maximum(transfer, _OVER_NS)
        self._going.append(k)

    def end(self, k: int) -> Floats:
        """S x R: when `k` is done. What is launched later must not be released before that."""
        while np.isinf(self.done[..., k]).any():
            self._go_on(np.isinf(self.done[..., k]))
        self._going = [j for j in self._going if np.isinf(self.done[..., j]).any()]
        found: Floats = self.done[..., k]
        return found

    def _go_on(self, wanted: Bools) -> None:
        """Go on to the next change, where it is `wanted` (S x R)."""
        places = np.array(self._going)
        released, left = self._released[..., places], self._left[..., places]
        pending = left > 0
        ready = pending & self._first(places, pending)
        now = np.where(np.isinf(self._now), np.where(ready, released, np.inf).min(axis=-1), self._now)[
            ..., None
        ]
        moving = ready & (released <= now)
        sharing = np.ones(moving.shape)
        for wire in set(self._wire[places].tolist()):
            over = self._wire[places] == wire
            sharing[..., over] = np.maximum(moving[..., over].sum(axis=-1, keepdims=True), 1)
        ends = np.where(moving, now + left * sharing, np.inf)
        comes = np.where(ready & ~moving, released, np.inf)
        after = np.where(wanted[..., None], np.minimum(ends, comes).min(axis=-1, keepdims=True), now)
        begun = self.begun[..., places]
        self.begun[..., places] = np.where(moving & wanted[..., None], np.minimum(begun, now), begun)
        left = np.where(moving, left - (after - now) / sharing, left)
        over_now = moving & wanted[..., None] & ((left <= _OVER_NS / 2) | (ends <= after))
        self.done[..., places] = np.where(over_now, after, self.done[..., places])
        self._left[..., places] = np.where(over_now, 0.0, left)
        self._now = np.where(wanted, after[..., 0], self._now)

    def _first(self, places: NDArray[np.int64], pending: Bools) -> Bools:
        """Which of them need not wait for another one of their communicator that is not done."""
        found = np.ones_like(pending)
        for communicator in set(self._communicator[places].tolist()):
            of = (self._communicator[places] == communicator) & self._in_turn[places]
            found[..., of] = np.cumsum(pending[..., of], axis=-1) == 1
        return found
