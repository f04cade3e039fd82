"""Merge the ranks' stamps of a step, which separates skew from transfer.

A bucket's collective can move data only after its last rank has launched it, and it ends when the last rank is done:
R_b = latest launch, D_b = latest done. From when on it does so depends on the back end (network.channel), which also
divides the link among collectives that run at once. Bytes are never divided by one rank's own duration, which is mostly
waiting for the others.

Arrays: S steps of a block, R ranks, K buckets in the order of reduction, M micro-steps that reduce, B broadcasts of
buffers; times in ns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from scaling.analysis.network.channel import ONE, Channel, union
from scaling.analysis.statistics.rounds import Floats


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
    earlier_wait: Floats  # S x R, durations: waits for communication at the end of earlier micro-steps
    buffer_wait: Floats  # S x R, durations: broadcasts of buffers, in forward
    buffer_begin: Floats  # S x R x B, absolute: those that are known one by one
    buffer_end: Floats
    micro_steps: int = 1
    """M: 1, unless no_sync was left out."""
    channel: Channel = ONE
    start: Floats | None = None
    """S x R x K, absolute: the communicator's stream came to it; 0 where not taken. None: nowhere."""
    enqueue: Floats | None = None
    """S x R x K, absolute: the host began to enqueue; None where that is not known, or no host enqueues."""
    host_ns: float = 0.0
    """How long the host takes to bring a collective to an idle device."""

    @property
    def handed(self) -> Floats:
        """S x R x K: when each rank's collective is on its communicator's stream; at once where the host is ahead.

        Where the stream's own stamp is known, what it lay behind the one before it is not counted.
        """
        if self.start is not None:
            before = np.concatenate([np.zeros_like(self.done[:, :, :1]), self.done[:, :, :-1]], axis=2)
            late = self.start - np.maximum(self.launch, before)
            return np.where(self.start > 0, self.launch + np.maximum(late, 0.0), self.launch)
        if self.enqueue is None or not self.host_ns:
            return self.launch
        found: Floats = np.minimum(np.maximum(self.launch, self.enqueue + self.host_ns), self.done)
        return np.maximum(found, self.launch)

    @property
    def waited(self) -> Floats:
        """S x R: all that a rank waits for communication in a step."""
        return self.sync_end - self.compute_end + self.earlier_wait + self.buffer_wait

    @property
    def own_ends(self) -> Floats:
        """S x R x M: when a rank has the last bucket of a micro-step."""
        steps, ranks, buckets = self.done.shape
        each = self.done.reshape(steps, ranks, self.micro_steps, buckets // self.micro_steps)
        ends: Floats = each.max(axis=3)
        return ends

    @property
    def compute_ends(self) -> Floats:
        """S x R x M: when backward's compute ended. An earlier micro-step's ends where its last bucket is launched."""
        steps, ranks, buckets = self.launch.shape
        each = self.launch.reshape(steps, ranks, self.micro_steps, buckets // self.micro_steps)
        return np.concatenate([each.max(axis=3)[:, :, :-1], self.compute_end[:, :, None]], axis=2)


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
    """S x R x B: the part of each broadcast in which the rank waits for others to come; the rest moves data."""


def merge(stamps: BlockStamps) -> Merged:
    """Merge one block's ranks."""
    ready = stamps.launch.max(axis=1)
    released = stamps.handed.max(axis=1)
    finished = np.maximum(stamps.done.max(axis=1), released)
    begun = stamps.channel.begun(released, finished)
    shares = stamps.channel.shares(begun, finished)
    moving, moved = (np.broadcast_to(each[:, None, :], stamps.done.shape) for each in (begun, finished))
    since = np.broadcast_to(np.minimum(ready, begun)[:, None, :], stamps.done.shape)
    exposed = [np.zeros_like(stamps.compute_end) for _ in range(3)]
    tells = stamps.host_ns > 0 or stamps.start is not None
    for low, end in zip(_last_axis(stamps.compute_ends), _last_axis(stamps.own_ends), strict=True):
        high = np.maximum(end, low)
        inside = np.minimum(union(moving, moved, low, high), high - low)
        enqueuing = union(since, moved, low, high) - inside if tells else np.zeros_like(inside)
        each = (inside, np.maximum(high - low - inside - enqueuing, 0.0), enqueuing)
        exposed = [so_far + more for so_far, more in zip(exposed, each, strict=True)]
    return Merged(
        released=released,
        finished=finished,
        begun=begun,
        busy=shares.busy,
        transfer=shares.transfer,
        shared=shares.shared,
        least=(stamps.done - (stamps.launch if stamps.start is None else stamps.handed)).min(axis=1),
        exposed_transfer=exposed[0],
        exposed_skew=exposed[1],
        exposed_enqueue=exposed[2],
        buffer_skew=_buffer_skew(stamps),
    )


def _buffer_skew(stamps: BlockStamps) -> Floats:
    skew = np.zeros_like(stamps.buffer_begin)
    for k, (begin, end) in enumerate(
        zip(_last_axis(stamps.buffer_begin), _last_axis(stamps.buffer_end), strict=True)
    ):
        skew[:, :, k] = stamps.channel.awaited(begin, end).waited(begin, end)
    return skew


def _last_axis(values: Floats) -> Iterator[Floats]:
    """The slices of S x R x N along its last axis, S x R each."""
    for k in range(values.shape[2]):
        yield values[:, :, k]
