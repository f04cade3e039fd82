"""How a back end serves the collectives of a step: one model by which stamps are merged and steps replayed.

A collective b is released at R_b, when its last rank has come to it, and done at D_b. When it moves data depends on the
back end:

    gloo     from R_b to D_b: a few run at once, in whatever order its workers take them
    others   from max(R_b, D_{b-1}) to D_b: NCCL and its like run one after the other on a communicator; b - 1 is the
             one before b on the same communicator. R_b is then the device's time of an event on the producing stream

Over Gloo too, a communicator's all-gathers and reduce-scatters begin in turn where `scaling run` makes them of messages
(worker/parallel/collectives.py).

A broadcast follows its data, so it is released for each rank by itself (network.awaited).

Where k of them move data over one wire at once, each has 1/k of it. `transfer` is what a collective has of the wire:
the time that it takes alone. While anything is released the wire never idles, so the last one is done at

    max over b of ( R_b + sum of T_j for j from b on )

in the order of release, whatever the order in which the back end interleaves them. Wires do not wait for each other.

Arrays: S steps, K collectives of a step in the order in which they are enqueued; times in ns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from scaling.analysis.network.awaited import CLOCKS_NS, STAMPS_NS, Awaited
from scaling.analysis.statistics.rounds import Floats

_CONCURRENT = "gloo"
"""The back end that runs several collectives of a communicator at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What each collective has of its wire."""

    transfer: Floats
    """S x K: its part of the busy wire."""
    shared: Floats
    """S x K: for how long others moved data over its wire at the same time."""
    busy: Floats
    """S: length of the time in which any collective moves data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """The collectives of a step as their back end serves them."""

    fifo: bool = False
    """Whether a communicator runs one collective after the other."""
    communicator: tuple[int, ...] = ()
    """K: on which communicator each runs; empty: all on one."""
    wire: tuple[int, ...] = ()
    """K: over which wire each goes; empty: all over one."""
    in_turn: tuple[bool, ...] = ()
    """K: whether it begins once those before it on its communicator that do so are done, though others run at once."""
    clocks_ns: float = CLOCKS_NS
    """By how much the stamps of two ranks may differ that were taken at the same time."""

    @classmethod
    def of(
        cls,
        backend: str,
        communicator: Sequence[int] = (),
        wire_of: Callable[[int], int] | None = None,
        clock_bound_ns: int | None = None,
        in_turn: Sequence[bool] = (),
    ) -> Channel:
        """A back end's, by its name in torch.distributed.

        `wire_of`: the wire of a communicator. `clock_bound_ns`: the largest error of a rank's clock against rank 0's;
        None: not known.
        """
        wire = () if wire_of is None else tuple(map(wire_of, communicator))
        fifo = is_fifo(backend)
        known = fifo and clock_bound_ns is not None
        return cls(
            fifo=fifo,
            communicator=tuple(communicator),
            wire=wire,
            in_turn=tuple(in_turn),
            clocks_ns=2 * (clock_bound_ns or 0) + STAMPS_NS if known else CLOCKS_NS,
        )

    def awaited(self, begin: Floats, end: Floats) -> Awaited:
        """Whom ranks wait for in a collective that follows its data; stamps S x R."""
        return Awaited.of(begin, end, fifo=self.fifo, clocks_ns=self.clocks_ns)

    def among(self, places: slice) -> Channel:
        """The same for some of the collectives."""
        return dataclasses.replace(
            self,
            communicator=self.communicator[places],
            wire=self.wire[places],
            in_turn=self.in_turn[places],
        )

    def begun(self, released: Floats, finished: Floats) -> Floats:
        """S x K: when each begins to move data."""
        if not self.fifo and not any(self.in_turn):
            return released
        begun = released.copy()
        for of_one in _places(self.communicator, released.shape[-1]):
            places = [k for k in of_one if self.fifo or self.in_turn[k]]
            behind = np.maximum.accumulate(finished[..., places], axis=-1)
            begun[..., places[1:]] = np.maximum(begun[..., places[1:]], behind[..., :-1])
        earliest: Floats = np.minimum(begun, finished)
        return earliest

    def shares(self, begun: Floats, finished: Floats) -> Shares:
        """Divide the wires' time among the collectives; `begun` and `finished` are S x K."""
        bounds = np.sort(np.concatenate([begun, finished], axis=1), axis=1)
        low, high = bounds[:, :-1, None], bounds[:, 1:, None]
        active = (begun[:, None, :] <= low) & (finished[:, None, :] >= high)
        count = np.empty(active.shape, dtype=np.int64)
        for places in _places(self.wire, begun.shape[1]):
            count[:, :, places] = active[:, :, places].sum(axis=2, keepdims=True)
        length = np.where(active, high - low, 0.0)
        return Shares(
            transfer=(length / np.maximum(count, 1)).sum(axis=1),
            shared=np.where(count > 1, length, 0.0).sum(axis=1),
            busy=length.max(axis=2).sum(axis=1),
        )

    def last_done(self, released: Floats, transfer: Floats) -> Floats:
        """S: when the last one is done; `released` and `transfer` are S x K."""
        found = np.full(released.shape[:-1], -np.inf)
        in_order = released.copy()
        for places in _places(self.communicator, released.shape[-1]):
            in_order[..., places] = np.maximum.accumulate(released[..., places], axis=-1)
        for places in _places(self.wire, released.shape[-1]):
            at, left = in_order[..., places], transfer[..., places]
            if self.communicator:  # those of one communicator are in order
                order = np.argsort(at, axis=-1, kind="stable")
                at, left = (np.take_along_axis(each, order, axis=-1) for each in (at, left))
            left = np.flip(np.cumsum(np.flip(left, axis=-1), axis=-1), axis=-1)
            found = np.maximum(found, (at + left).max(axis=-1))
        return found


ONE = Channel()
"""All on one communicator. When its last collective is done does not depend on the back end."""


def is_fifo(backend: str) -> bool:
    """Whether a back end runs the collectives of a communicator one after the other."""
    return backend != _CONCURRENT


def union(begin: Floats, end: Floats, low: Floats, high: Floats) -> Floats:
    """Length of the union of intervals within a window: `begin`, `end` are ... x K, `low`, `high` of one axis less."""
    order = np.argsort(begin, axis=-1, kind="stable")
    begin, end = (np.take_along_axis(each, order, axis=-1) for each in (begin, end))
    begin, end = (np.clip(each, low[..., None], high[..., None]) for each in (begin, end))
    reached = np.maximum.accumulate(end, axis=-1)
    covered = np.concatenate([begin[..., :1], reached[..., :-1]], axis=-1)
    length: Floats = np.maximum(end - np.maximum(begin, covered), 0.0).sum(axis=-1)
    return length


def _places(names: Sequence[int], count: int) -> Iterator[list[int]]:
    """The places of each name in a list; of all, where the list is empty."""
    if not names:
        yield list(range(count))
        return
    ordered = sorted(range(count), key=lambda k: (names[k], k))
    for _, places in groupby(ordered, key=lambda k: names[k]):
        yield list(places)
