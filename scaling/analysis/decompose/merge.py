"""Merge the ranks' stamps of a step, which separates skew from transfer.

A bucket's collective can move data only after its last rank has launched it, and it ends when the last rank is done:
[R_b, D_b], R_b = latest launch, D_b = latest done. The link is busy on the union of these intervals. Where k of them
overlap, each gets 1/k of the time, because backends run several collectives at once. Bytes are never divided by one
rank's own duration, which is mostly waiting for the others.

Arrays: S steps of a block, R ranks, K buckets in the order of reduction; times in ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.network.channel import Barrier

Floats = NDArray[np.float64]


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
    """R_b, S x K: the latest launch."""
    finished: Floats
    """D_b, S x K: the latest done."""
    busy: Floats
    """S: length of the union of [R_b, D_b]."""
    transfer: Floats
    """S x K: a bucket's share of the busy link; sums to `busy`."""
    least: Floats
    """S x K: the shortest duration of a bucket's collective on any one rank's own clock.

    The last rank to launch does not wait, so this cannot exceed D_b - R_b if clocks agree. If it is clearly shorter,
    the ranks' clocks disagree, or they saw the collective end at different times.
    """
    exposed_transfer: Floats
    """S x R: the link moves data and the rank has nothing left to compute."""
    exposed_skew: Floats
    """S x R: the rank waits and the link is idle, because another rank is late."""
    buffer_skew: Floats
    """S x R: the part of `buffer_wait` in which the rank waits for others to come; the rest moves data."""


def merge(stamps: BlockStamps) -> Merged:
    """Merge one block's ranks."""
    released = stamps.launch.max(axis=1)
    finished = np.maximum(stamps.done.max(axis=1), released)
    bounds = np.sort(np.concatenate([released, finished], axis=1), axis=1)
    low, high = bounds[:, :-1], bounds[:, 1:]
    active = (released[:, None, :] <= low[:, :, None]) & (finished[:, None, :] >= high[:, :, None])
    count = active.sum(axis=2)
    length = high - low
    share = np.where(count > 0, length / np.maximum(count, 1), 0.0)
    transfer = (active * share[:, :, None]).sum(axis=1)
    busy = np.where(count > 0, length, 0.0)

    window_low = stamps.compute_end[:, :, None]
    window_high = stamps.done.max(axis=2)[:, :, None]
    overlap = np.minimum(high[:, None, :], window_high) - np.maximum(low[:, None, :], window_low)
    inside = np.where(count[:, None, :] > 0, np.maximum(overlap, 0.0), 0.0).sum(axis=2)
    window = np.maximum(window_high[:, :, 0] - window_low[:, :, 0], 0.0)
    return Merged(
        released=released,
        finished=finished,
        busy=busy.sum(axis=1),
        transfer=transfer,
        least=(stamps.done - stamps.launch).min(axis=1),
        exposed_transfer=np.minimum(inside, window),
        exposed_skew=np.maximum(window - inside, 0.0),
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
