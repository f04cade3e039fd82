"""For how long intervals are open: integrals over time of how many of them there are at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scaling.analysis.statistics.rounds import Floats

Worth = Callable[[Floats], Floats]


def any_open(count: Floats) -> Floats:
    """1 while there is one."""
    return (count > 0).astype(float)


def equal_parts(count: Floats) -> Floats:
    """What each has of a thing that they share."""
    return np.where(count > 0, 1 / np.maximum(count, 1.0), 0.0)


def covered(begin: Floats, end: Floats, low: Floats, high: Floats, worth: Worth = any_open) -> Floats:
    """S x Q: the integral from `low` to `high` of `worth(how many are open)`.

    `begin`, `end`: S x N, no end before its begin. `low`, `high`: S x Q.
    """
    many, asked = begin.shape[1], low.shape[1]
    at = np.concatenate([begin, end, low, high], axis=1)
    order = np.argsort(at, axis=1, kind="stable")  # what begins and ends at once begins first
    change = np.zeros(at.shape)
    change[:, :many], change[:, many : 2 * many] = 1.0, -1.0
    count = np.cumsum(np.take_along_axis(change, order, axis=1), axis=1)[:, :-1]
    worths = np.diff(np.take_along_axis(at, order, axis=1), axis=1) * worth(count)
    so_far = np.concatenate([np.zeros((len(at), 1)), np.cumsum(worths, axis=1)], axis=1)
    until = np.empty_like(at)
    np.put_along_axis(until, order, so_far, axis=1)
    result: Floats = until[:, 2 * many + asked :] - until[:, 2 * many : 2 * many + asked]
    return result
