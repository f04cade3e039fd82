"""Two models of a step: `Replay` (DDP: waits only at the end, and in barriers) and `Program` (sharded: waits anywhere).

Both hold the ranks' own times and send the collectives through the channel of the back end (network.channel). Own times
count from different places in the two; each class says from which.

Arrays: S steps, R ranks, K collectives in the order of launch, M marks; times in ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.network.channel import ONE, Awaited, Channel, Flow
from scaling.analysis.network.shared_link import APART, Members, SharedLink, over_groups
from scaling.analysis.statistics.rounds import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """A collective inside each step in which ranks wait for others, such as DDP's broadcast of buffers in forward.

    A rank's own times leave out that wait. When they are replayed, it ends when the ranks that it is for have come.
    """

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

    def origin_after(self, start: Floats) -> Floats:
        """The origin of the ranks' own times after it, S x R, its wait added; `start`: the origin before it."""
        return self.awaited.latest(start + self.at) + self.transfer - self.at

    def with_mean(self, ranks: Sequence[int], peers: NDArray[np.intp]) -> Barrier:
        """Some ranks come when the others do, in the mean."""
        at = self.at.copy()
        at[:, ranks] = at[:, peers].mean(axis=1, keepdims=True)
        return replace(self, at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Steps of DDP as their ranks' own times and their buckets' transfers.

    Times count from the end of the step before, when the last rank had its last bucket. A rank's own times (`ready`,
    `compute_end`) count from its own last bucket; `start`, zero or less, is by how much it had that before the last
    rank: in a ring the ranks end up to one chunk apart. A bucket is released when its last rank is ready with it, and
    the step's period ends with the last bucket, or with the latest end of compute where nothing is left to wait for.

    Where accumulation goes on without no_sync, each micro-step ends in its own reductions and is such a step.
    """

    ready: Floats
    """S x R x K: when each rank hands its buckets to the communicator's stream, not when their gradients are ready."""
    compute_end: Floats
    """S x R."""
    transfer: Floats
    """S x K: what each bucket takes alone."""
    start: Floats | None = None
    """S x R; None: all ranks begin together."""
    barriers: tuple[Barrier, ...] = ()
    """In the order in which ranks come to them. The ranks' own times leave out the waits in all of them."""
    channel: Channel = ONE

    def period(self) -> Floats:
        """How long each step takes, S."""
        begin = np.zeros_like(self.compute_end) if self.start is None else self.start
        for barrier in self.barriers:
            begin = barrier.origin_after(begin)
        together = self.start is None and not self.barriers
        released = (self.ready if together else begin[:, :, None] + self.ready).max(axis=1)
        last = self.channel.last_done(released, self.transfer)
        result: Floats = np.maximum(last, (begin + self.compute_end).max(axis=1))
        return result

    def without(self, late: Sequence[int]) -> Replay:
        """Some ranks' own times replaced by the others' mean: the steps without their lateness."""
        peers = np.setdiff1d(np.arange(self.ready.shape[1]), late)
        ready, compute_end = self.ready.copy(), self.compute_end.copy()
        ready[:, late] = ready[:, peers].mean(axis=1, keepdims=True)
        compute_end[:, late] = compute_end[:, peers].mean(axis=1, keepdims=True)
        barriers = tuple(barrier.with_mean(late, peers) for barrier in self.barriers)
        return replace(self, ready=ready, compute_end=compute_end, barriers=barriers)

    def sooner_by(self, by: Floats) -> Replay:
        """Every rank's own times sooner by that much, S x R, as if it had not waited for its input."""
        return replace(
            self,
            ready=self.ready - by[:, :, None],
            compute_end=self.compute_end - by,
            barriers=tuple(replace(barrier, at=barrier.at - by) for barrier in self.barriers),
        )

    def stretched(self, by: Floats) -> Replay:
        """Every rank's own times so many times as long, S x R."""
        return replace(
            self,
            ready=self.ready * by[:, :, None],
            compute_end=self.compute_end * by,
            barriers=tuple(replace(barrier, at=barrier.at * by) for barrier in self.barriers),
        )

    def without_transfer(self) -> Replay:
        """The step if communication took no time."""
        barriers = tuple(replace(each, transfer=np.zeros_like(each.transfer)) for each in self.barriers)
        return replace(self, transfer=np.zeros_like(self.transfer), barriers=barriers)

    def at_mean_of(self, ranks: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(period, exposed transfer), S each, with every rank's own times at the mean of the given (typical) ranks."""
        together = self.ready[:, ranks].mean(axis=1)
        compute = self.compute_end[:, ranks].mean(axis=1)
        last = self.channel.last_done(together, self.transfer)
        buffers_ns = sum((b.transfer[:, ranks].mean(axis=1) for b in self.barriers), np.zeros(len(compute)))
        return np.maximum(last, compute) + buffers_ns, np.maximum(last - compute, 0.0) + buffers_ns

    def computed(self) -> Floats:
        """S x R: when each rank's backward ends, in its own time."""
        return self.compute_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A launch of a collective, or a wait for it."""

    waits: bool
    collective: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Steps in which ranks wait at many places: launches and waits in the same order on every rank.

    A sharded step gathers each unit's parameters before its forward and its backward and reduces its gradients after
    it. A rank's own time before each launch and each wait counts from where it last went on after a wait. A collective
    is released when the last rank of its communicator has launched it (a broadcast, for each rank, when those have that
    it waits for), and moves its data as the channel has it.

        at(launch) = resumed + own            released_k = max over members of at(launch_k)
                     done_j + own, where a stream launches k once the rank's collective j is done
        done_k     = the channel's, for all that was released before, and for the groups beside it (SharedLink)
        resumed    = max(at(wait_k), done_k) + lag_k, but not before at(wait_k)

    Times count from where the last rank went on after the last wait of the step before.
    """

    marks: tuple[Mark, ...]
    """In the order in which a rank comes to them."""
    own_ns: Floats
    """S x R x M: from the end of the rank's last wait to the mark; no increments since the mark before."""
    transfer: Floats
    """S x R x K: what each collective takes alone; equal for the ranks of one communicator."""
    lag: Floats
    """S x R x K: measured end of a rank's wait less max(own arrival, done).

    Below 0: it has its part of a ring up to one chunk before the last one. Above 0: it was woken late.
    """
    members: tuple[Members, ...]
    """K."""
    channel: Channel
    """How the back end serves the K collectives."""
    start: Floats
    """S x R, zero or less: by how much a rank went on before the last one."""
    follows: Mapping[int, Awaited] = field(default_factory=dict)
    """Broadcasts: whom each rank waits for; each rank is done by itself."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """Collectives that a stream of their own launches, each with the one that it is launched behind."""
    beside: SharedLink = APART
    """Which groups of a collective share a host's link."""

    def run(self) -> Floats:
        """S x R: when each rank went on for the last time."""
        steps, ranks, _ = self.own_ns.shape
        resumed: Floats = self.start.copy()
        flow = Flow(self.channel, (steps, ranks), self.transfer.shape[2])
        for place, mark in enumerate(self.marks):
            k, since = mark.collective, resumed
            if not mark.waits and k in self.behind:
                since = over_groups(flow.end(self.behind[k]), self.members[self.behind[k]], np.max)
            at = since + self.own_ns[:, :, place]
            if not mark.waits:
                awaited = self.follows.get(k)
                released = awaited.latest(at) if awaited else over_groups(at, self.members[k], np.max)
                transfer = self.beside.slowed(released, self.transfer[:, :, k], self.members[k])
                flow.launch(k, released, transfer)
                continue
            done = flow.end(k)
            if k not in self.follows:
                done = over_groups(done, self.members[k], np.max)
            resumed = np.maximum(np.maximum(at, done) + self.lag[:, :, k], at)
        return resumed

    def period(self) -> Floats:
        """How long each step takes, S."""
        result: Floats = self.run().max(axis=1)
        return result

    def at_pace(self, stretch: Floats, transfer: Floats) -> float:
        """The mean step, ns, with own times `stretch` (R) times as long and each collective taking `transfer` (K).

        They are those of all groups of a collective together.
        """
        return self.at_times(self.own_ns.mean(axis=0) * stretch[:, None], transfer)

    def at_times(self, own_ns: Floats, transfer: Floats) -> float:
        """The step, ns, with own times R x M and transfers of all groups of a collective together (K)."""
        ranks = len(own_ns)
        replay = replace(
            self,
            own_ns=own_ns[None],
            transfer=self.of_groups(transfer),
            lag=np.zeros((1, ranks, len(transfer))),
            start=np.zeros((1, ranks)),
            follows={},  # alike ranks wait for each other
        )
        return float(replay.period()[0])

    def of_groups(self, transfer: Floats) -> Floats:
        """1 x R x K: what a group takes alone, from what all groups of each collective take together (K)."""
        each = transfer / np.array([self.beside.many(groups) for groups in self.members])
        return np.broadcast_to(each, (1, self.own_ns.shape[1], len(each)))

    def at_mean_of(self, ranks: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(period, exposed transfer), S each, with every rank's own times at the mean of the given (typical) ranks.

        Such ranks come to each collective together, so all that the step takes beyond their own times is transfer: what
        they wait for data, and for ranks whose data came later. Not what they were woken late.
        """
        mean = np.broadcast_to(self.own_ns[:, ranks].mean(axis=1, keepdims=True), self.own_ns.shape)
        even = self.beside.evened(self.transfer, self.members)
        alike = replace(self, own_ns=mean, transfer=even)
        free = replace(alike.without_transfer(), lag=np.maximum(self.lag, 0.0))
        period = alike.period()
        return period, period - free.period()

    def without(self, late: Sequence[int]) -> Program:
        """Some ranks' own times replaced by the others' mean: the steps without their lateness."""
        own_ns, peers = self.own_ns.copy(), np.setdiff1d(np.arange(self.own_ns.shape[1]), late)
        own_ns[:, late] = own_ns[:, peers].mean(axis=1, keepdims=True)
        return replace(self, own_ns=own_ns)

    def sooner_by(self, by: Floats) -> Program:
        """Every rank's own times sooner by that much, S x R, as if it had not waited for its input."""
        own_ns, first = self.own_ns.copy(), next((i for i, mark in enumerate(self.marks) if mark.waits), None)
        own_ns[:, :, : None if first is None else first + 1] -= by[:, :, None]
        return replace(self, own_ns=own_ns)

    def stretched(self, by: Floats) -> Program:
        """Every rank's own times so many times as long, S x R."""
        return replace(self, own_ns=self.own_ns * by[:, :, None])

    def without_transfer(self) -> Program:
        """The step if communication took no time."""
        return replace(self, transfer=np.zeros_like(self.transfer), lag=np.zeros_like(self.lag))

    def computed(self) -> Floats:
        """S x R: a rank's own time of the whole step, up to its last wait's mark."""
        waits = [place for place, mark in enumerate(self.marks) if mark.waits]
        result: Floats = self.own_ns[:, :, waits].sum(axis=2)
        return result
