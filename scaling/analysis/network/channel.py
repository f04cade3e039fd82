"""Simulate a data-parallel step: bucket ready times through one shared link.

Times count from the end of the step before, when the last rank had its last bucket. A rank's own
times (`ready`, `compute_end`) count from its own last bucket; `start`, zero or less, is by how much it
had that before the last rank: in a ring the ranks end up to one chunk apart. A bucket is released when
its last rank is ready with it. The link serves released buckets without idling, so for any order in which
a backend interleaves buckets, the last one is done at

    max over b of ( R_b + sum of T_j for j >= b )

and the step's period is that, or the latest end of compute where nothing is left to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def last_done(released: Floats, transfer: Floats) -> Floats:
    """When the last bucket is done, S: `released` and `transfer` are S x K in the order of reduction."""
    left = np.flip(np.cumsum(np.flip(transfer, axis=-1), axis=-1), axis=-1)
    done: Floats = (released + left).max(axis=-1)
    return done


def period(ready: Floats, compute_end: Floats, transfer: Floats, start: Floats | None = None) -> Floats:
    """Step period, S: `ready` S x R x K, `compute_end` and `start` S x R, `transfer` S x K."""
    begin = np.zeros_like(compute_end) if start is None else start
    released = (begin[:, :, None] + ready).max(axis=1)
    result: Floats = np.maximum(last_done(released, transfer), (begin + compute_end).max(axis=1))
    return result


def period_without(
    late: Sequence[int], ready: Floats, compute_end: Floats, transfer: Floats, start: Floats | None = None
) -> Floats:
    """The period with some ranks' own times replaced by the others' mean, S: the step without their lateness."""
    peers = np.setdiff1d(np.arange(ready.shape[1]), late)
    ready, compute_end = ready.copy(), compute_end.copy()
    ready[:, late] = ready[:, peers].mean(axis=1, keepdims=True)
    compute_end[:, late] = compute_end[:, peers].mean(axis=1, keepdims=True)
    return period(ready, compute_end, transfer, start)


def period_of_mean(
    ranks: NDArray[np.bool_], ready: Floats, compute_end: Floats, transfer: Floats
) -> tuple[Floats, Floats]:
    """(period, exposed transfer), S each, with every rank's own times at the mean of the given (typical) ranks."""
    together = ready[:, ranks].mean(axis=1)
    compute = compute_end[:, ranks].mean(axis=1)
    last = last_done(together, transfer)
    return np.maximum(last, compute), np.maximum(last - compute, 0.0)
