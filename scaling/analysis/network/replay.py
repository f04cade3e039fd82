"""Replay steps of synchronous data parallel: ready times of all ranks through the channel of their back end.

Times count from the end of the step before, when the last rank had its last bucket. A rank's own times (`ready`,
`compute_end`) count from its own last bucket; `start`, zero or less, is by how much it had that before the last rank:
in a ring the ranks end up to one chunk apart. A bucket is released when its last rank is ready with it, and the step's
period ends with the last bucket, or with the latest end of compute where nothing is left to wait for.

Where DDP broadcasts buffers at the begin of forward, ranks wait for each other there too (network.barrier).

Where accumulation goes on without no_sync, each micro-step ends in its own reductions and is such a step. Their periods
add up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.network.barrier import Barrier
from scaling.analysis.network.channel import ONE, Channel
from scaling.analysis.statistics.rounds import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Steps as their ranks' own times and their collectives' transfers: S steps, R ranks, K buckets, ns."""

    ready: Floats
    """S x R x K: when each rank hands its buckets over."""
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
            begin = barrier.passed(begin)
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
        return dataclasses.replace(self, ready=ready, compute_end=compute_end, barriers=barriers)

    def earlier(self, by: Floats) -> Replay:
        """Every rank's own times sooner by that much, S x R, as if it had not waited for its input."""
        return dataclasses.replace(
            self,
            ready=self.ready - by[:, :, None],
            compute_end=self.compute_end - by,
            barriers=tuple(dataclasses.replace(barrier, at=barrier.at - by) for barrier in self.barriers),
        )

    def stretched(self, by: Floats) -> Replay:
        """Every rank's own times so many times as long, S x R."""
        return dataclasses.replace(
            self,
            ready=self.ready * by[:, :, None],
            compute_end=self.compute_end * by,
            barriers=tuple(dataclasses.replace(barrier, at=barrier.at * by) for barrier in self.barriers),
        )

    def free(self) -> Replay:
        """The same if communication took no time."""
        barriers = tuple(barrier.free() for barrier in self.barriers)
        return dataclasses.replace(self, transfer=np.zeros_like(self.transfer), barriers=barriers)

    def of_mean(self, ranks: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """(period, exposed transfer), S each, with every rank's own times at the mean of the given (typical) ranks."""
        together = self.ready[:, ranks].mean(axis=1)
        compute = self.compute_end[:, ranks].mean(axis=1)
        last = self.channel.last_done(together, self.transfer)
        held = sum((b.transfer[:, ranks].mean(axis=1) for b in self.barriers), np.zeros(len(compute)))
        return np.maximum(last, compute) + held, np.maximum(last - compute, 0.0) + held

    def computed(self) -> Floats:
        """S x R: when each rank has computed all its gradients, in its own time."""
        return self.compute_end
