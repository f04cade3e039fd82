"""How a back end serves the collectives of a step: one model by which stamps are merged and steps replayed.

A collective b is released at R_b, when its last rank has come to it, and done at D_b. When it moves data depends on the
back end:

    gloo     from R_b to D_b: a few run at once, in whatever order its workers take them
    others   from max(R_b, D_{b-1}) to D_b: NCCL and its like run one after the other on a communicator; b - 1 is the
             one before b on the same communicator. R_b is then the device's time of an event on the producing stream

Over Gloo too, a communicator's all-gathers and reduce-scatters begin in turn where `scaling run` makes them of messages
(worker/parallel/collectives.py).

Where k of them move data over one wire at once, each has 1/k of it. `transfer` is what a collective has of the wire:
the time that it takes alone. While anything is released the wire never idles, so the last one is done at

    max over b of ( R_b + sum of T_j for j from b on )

in the order of release, whatever the order in which the back end interleaves them. Wires do not wait for each other.
`Channel` applies these rules to steps whose releases are known; `Flow` to steps in which a later launch depends on when
an earlier collective was done. A broadcast follows its data, so it is released for each rank by itself (`Awaited`).

Arrays: S steps, R ranks, K collectives of a step in the order in which they are enqueued; times in ns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.statistics.rounds import Floats
from scaling.records.tables import Tables
from scaling.settings.plan import HARNESS, Plan
from scaling.settings.run import KINDS

CLOCKS_NS = 200_000.0
"""On a back end of the host, ranks' clocks and stamps may differ by this."""
STAMPS_NS = 20_000.0
"""A device's stamps may differ by this, beside the error of the comparison of clocks."""
HOSTS_OWN = ("gloo", "mpi")
"""Back ends whose collectives the host makes and waits for."""
_IN_TURN = (KINDS.index("all_gather"), KINDS.index("reduce_scatter"))
"""What a communicator of `scaling run` carries one after the other, over a host's back end too."""


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

    def latest(self, times: Floats) -> Floats:
        """S x R: the latest of `times` over the ranks that each one waits for, and of its own."""
        so_far = np.maximum.accumulate(np.take_along_axis(times, self.order, axis=1), axis=1)
        latest: Floats = np.maximum(np.take_along_axis(so_far, self.count - 1, axis=1), times)
        return latest

    def waited(self, begin: Floats, end: Floats) -> Floats:
        """S x R: how long of [begin, end] a rank waited for others to come; the rest of it is transfer."""
        return np.clip(self.latest(begin) - begin, 0.0, np.maximum(end - begin, 0.0))


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
        bounded = fifo and clock_bound_ns is not None
        return cls(
            fifo=fifo,
            communicator=tuple(communicator),
            wire=wire,
            in_turn=tuple(in_turn),
            clocks_ns=2 * (clock_bound_ns or 0) + STAMPS_NS if bounded else CLOCKS_NS,
        )

    def awaited(self, begin: Floats, end: Floats) -> Awaited:
        """Whom ranks wait for in a collective that follows its data; stamps S x R."""
        return Awaited.of(begin, end, fifo=self.fifo, clocks_ns=self.clocks_ns)

    def among(self, places: slice) -> Channel:
        """The channel of some of the collectives."""
        return replace(
            self, communicator=self.communicator[places], wire=self.wire[places], in_turn=self.in_turn[places]
        )

    def begun(self, released: Floats, finished: Floats) -> Floats:
        """S x K: when each begins to move data."""
        if not self.fifo and not any(self.in_turn):
            return released
        return np.minimum(np.maximum(released, self.before(finished)), finished)

    def before(self, finished: Floats) -> Floats:
        """... x K: when all are done that go before each on its communicator; -inf where none does."""
        before = np.full_like(finished, -np.inf)
        for line in _places(self.communicator, finished.shape[-1]):
            places = [k for k in line if self.fifo or any(self.in_turn[k : k + 1])]
            before[..., places[1:]] = np.maximum.accumulate(finished[..., places], axis=-1)[..., :-1]
        return before

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
        latest = np.full(released.shape[:-1], -np.inf)
        in_order = released.copy()
        for places in _places(self.communicator, released.shape[-1]):
            in_order[..., places] = np.maximum.accumulate(released[..., places], axis=-1)
        for places in _places(self.wire, released.shape[-1]):
            at, left = in_order[..., places], transfer[..., places]
            if self.communicator:  # those of one communicator are in order
                order = np.argsort(at, axis=-1, kind="stable")
                at, left = (np.take_along_axis(each, order, axis=-1) for each in (at, left))
            left = np.flip(np.cumsum(np.flip(left, axis=-1), axis=-1), axis=-1)
            latest = np.maximum(latest, (at + left).max(axis=-1))
        return latest


ONE = Channel()
"""All on one communicator. When its last collective is done does not depend on the back end."""


ChannelOf = Callable[[Sequence[int], Sequence[int]], Channel]
"""How the back end of a plan serves the collectives of a step.

By the communicator and the kind of each collective, in order; without kinds they are all-reduces.
"""


def channels(tables: Tables, plan: Plan) -> ChannelOf:
    """The back end of a plan. Communicators between hosts share a wire, and so do those within hosts."""
    backend = plan.spec.topology.backend
    ordered = backend in HOSTS_OWN and plan.source == HARNESS
    host = {(file.launch, file.rank): file.host for file in tables.ranks}
    across: dict[int, int] = {}
    bounds = [file.clock_bound_ns for file in tables.ranks]
    bound = None if None in bounds else max((ns or 0 for ns in bounds), default=0)
    for file in tables.ranks:
        for key, members in file.groups.items():
            if file.rank == members[0]:  # each group once
                hosts = {host.get((file.launch, rank), file.host) for rank in members}
                across[key] = max(across.get(key, 0), int(len(hosts) > 1))

    def channel(communicators: Sequence[int], kinds: Sequence[int] = ()) -> Channel:
        in_turn = [ordered and kind in _IN_TURN for kind in kinds]
        return Channel.of(backend, communicators, lambda key: across.get(key, 0), bound, in_turn)

    return channel


def is_fifo(backend: str) -> bool:
    """Whether a back end runs the collectives of a communicator one after the other; Gloo runs several at once."""
    return backend != "gloo"


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
        if not (np.isfinite(released).all() and np.isfinite(transfer).all()):
            raise ValueError(f"collective {k} has no time to begin or to last, so it would never end")
        # A rank may go on a little before its part is counted as over, so nothing is released in the past.
        self._released[..., k] = np.maximum(released, self._now)
        self._left[..., k] = np.maximum(transfer, _OVER_NS)
        self._going.append(k)

    def end(self, k: int) -> Floats:
        """S x R: when `k` is done. What is launched later must not be released before that."""
        while np.isinf(self.done[..., k]).any():
            self._go_on(np.isinf(self.done[..., k]))
        self._going = [j for j in self._going if np.isinf(self.done[..., j]).any()]
        ends: Floats = self.done[..., k]
        return ends

    def _go_on(self, wanted: Bools) -> None:
        """Go on to the next change, where it is `wanted` (S x R)."""
        places = np.array(self._going)
        released, left = self._released[..., places], self._left[..., places]
        pending = left > 0
        ready = pending & self._first(places, pending)
        first = np.where(ready, released, np.inf).min(axis=-1)
        now = np.where(np.isinf(self._now), first, self._now)[..., None]
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
        first = np.ones_like(pending)
        for communicator in set(self._communicator[places].tolist()):
            queued = (self._communicator[places] == communicator) & self._in_turn[places]
            first[..., queued] = np.cumsum(pending[..., queued], axis=-1) == 1
        return first
