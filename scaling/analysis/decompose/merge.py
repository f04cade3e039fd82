"""Merge the ranks' stamps of a step, which separates skew from transfer.

A bucket's collective can move data only after its last rank has launched it, and it ends when the last rank is done:
R_b = latest launch, D_b = latest done. From when on it does so depends on the back end (network.channel), which also
divides the link among collectives that run at once. Bytes are never divided by one rank's own duration, which is mostly
waiting for the others.

Arrays: S steps of a block, R ranks, K buckets in the order of reduction; times in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.analysis.network.barrier import Barrier
from scaling.analysis.network.channel import ONE, Channel, Floats, union


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStamps:
    """One detailed probe block on all ranks."""

    begin: Floats  # S x R, absolute
    end: Floats
    input: Floats  # S x R, durations
    forward: Floats
    backward: Floats
    optimizer: Floats
    compute_end: Floats  # S x R, absolute
    sync_end: Floats
    ready: Floats  # S x R x K, absolute
    launch: Floats
    done: Floats
    bytes: Floats  # K
    buffer_wait: Floats  # S x R, durations: broadcasts of buffers, in forward
    buffer_begin: Floats  # S x R, absolute: the last of them; 0 where there was none
    buffer_end: Floats
    channel: Channel = ONE
    enqueue: Floats | None = None
    """S x R x K, absolute: the host began to enqueue; None where that is not known, or no host enqueues."""
    host_ns: float = 0.0
    """How long the host takes to bring a collective to an idle device."""

    @property
    def handed(self) -> Floats:
        """S x R x K: when each rank's collective is on its communicator's stream; at once where the host is ahead."""
        if self.enqueue is None or not self.host_ns:
            return self.launch
        found: Floats = np.minimum(np.maximum(self.launch, self.enqueue + self.host_ns), self.done)
        return np.maximum(found, self.launch)

    def barrier(self, origin: Floats, first: int = 0) -> Barrier | None:
        """The last broadcast of buffers in each step from `first` on; None without one.

        `origin`: where the ranks' own times in these steps begin.
        """
        if not (self.buffer_begin > 0).all():
            return None
        return Barrier.of(self.buffer_begin[first:], self.buffer_end[first:], origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What the ranks did together, step by step."""

    released: Floats
    """R_b, S x K: the latest launch, on the communicator's stream."""
    finished: Floats
    """D_b, S x K: the latest done."""
    begun: Floats
    """S x K: when it begins to move data; after R_b where others are before it on its communicator."""
    busy: Floats
    """S: how long the link moves data."""
    transfer: Floats
    """S x K: a bucket's share of the busy link; sums to `busy` over one link."""
    shared: Floats
    """S x K: for how long others moved data over the same link."""
    least: Floats
    """S x K: the shortest duration of a bucket's collective on any one rank's own clock.

    The last rank to launch does not wait, so this cannot exceed D_b - R_b if clocks agree. If it is clearly shorter,
    the ranks' clocks disagree, or they saw the collective end at different times.
    """
    exposed_transfer: Floats
    """S x R: the link moves data and the rank has nothing left to compute."""
    exposed_skew: Floats
    """S x R: the rank waits and the link is idle, because another rank is late."""
    exposed_enqueue: Floats
    """S x R: the rank waits and the link is idle, because a collective that all are ready for is not enqueued yet."""
    buffer_skew: Floats
    """S x R: the part of `buffer_wait` in which the rank waits for others to come; the rest moves data."""


def merge(stamps: BlockStamps) -> Merged:
    """Merge one block's ranks."""
    ready = stamps.launch.max(axis=1)
    released = stamps.handed.max(axis=1)
    finished = np.maximum(stamps.done.max(axis=1), released)
    begun = stamps.channel.begun(released, finished)
    shares = stamps.channel.shares(begun, finished)
    low, high = stamps.compute_end, np.maximum(stamps.done.max(axis=2), stamps.compute_end)
    moving, moved = (np.broadcast_to(each[:, None, :], stamps.done.shape) for each in (begun, finished))
    inside = union(moving, moved, low, high)
    window = high - low
    enqueuing = np.zeros_like(window)
    if stamps.host_ns:
        since = np.broadcast_to(np.minimum(ready, begun)[:, None, :], stamps.done.shape)
        enqueuing = union(since, moved, low, high) - inside
    return Merged(
        released=released,
        finished=finished,
        begun=begun,
        busy=shares.busy,
        transfer=shares.transfer,
        shared=shares.shared,
        least=(stamps.done - stamps.launch).min(axis=1),
        exposed_transfer=np.minimum(inside, window),
        exposed_skew=np.maximum(window - inside - enqueuing, 0.0),
        exposed_enqueue=enqueuing,
        buffer_skew=_buffer_skew(stamps),
    )


def _buffer_skew(stamps: BlockStamps) -> Floats:
    """Earlier broadcasts of a step, of which only the sum is known, are split as its last one."""
    barrier, last = stamps.barrier(stamps.begin), stamps.buffer_end - stamps.buffer_begin
    if barrier is None:
        return np.zeros_like(last)
    waited = barrier.waited(stamps.buffer_begin, stamps.buffer_end)
    skew: Floats = np.divide(waited, last, out=np.zeros_like(last), where=last > 0) * stamps.buffer_wait
    return skew
