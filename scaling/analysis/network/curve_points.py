"""A fabric curve as its points, with monotone interpolation between them.

The time of a collective over its size is piecewise: protocols and algorithms have their own ranges, and no line with
one latency and one bandwidth goes through them. Between two measured sizes the logarithm of time is a cubic of the
logarithm of size that rises or falls as the points do (F. N. Fritsch, J. Butland, SIAM J. Sci. Stat. Comput. 5(2),
1984, with the end slopes of C. Moler, Numerical Computing with MATLAB, section 3.6). Below the smallest size the time
stays, above the largest the bandwidth stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scaling.analysis.statistics.rounds import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Times by size; the estimate first, then resampled values."""

    sizes: tuple[int, ...]
    """J, rising, bytes, above 0."""
    times: Floats
    """S x J, above 0, in any unit."""

    def at(self, size: float) -> Floats:
        """S: the time of a message of `size` bytes."""
        smallest, largest = self.sizes[0], self.sizes[-1]
        if size <= smallest:
            return self.times[:, 0]
        if size >= largest:
            grown: Floats = self.times[:, -1] * (size / largest)
            return grown
        x, y = np.log(self.sizes), np.log(self.times)
        h, rise = np.diff(x), np.diff(y, axis=1) / np.diff(x)
        k = int(np.searchsorted(x, np.log(size), side="right")) - 1
        slope = _slopes(h, rise)
        s = np.log(size) - x[k]
        c = (3 * rise[:, k] - 2 * slope[:, k] - slope[:, k + 1]) / h[k]
        b = (slope[:, k] - 2 * rise[:, k] + slope[:, k + 1]) / h[k] ** 2
        found: Floats = np.exp(y[:, k] + s * (slope[:, k] + s * (c + s * b)))
        return found

    def without(self, index: int) -> Points:
        """The same without one point."""
        sizes = self.sizes[:index] + self.sizes[index + 1 :]
        return Points(sizes=sizes, times=np.delete(self.times, index, axis=1))

    def left_out_errors(self) -> Floats:
        """|T interpolated from the other points - T| / T of each point but the first and the last; of the estimate."""
        there = Points(sizes=self.sizes, times=self.times[:1])
        inner = range(1, len(self.sizes) - 1)
        guessed = [there.without(k).at(self.sizes[k])[0] for k in inner]
        times = self.times[0, 1:-1]
        return np.abs(np.array(guessed) - times) / times


def _slopes(h: Floats, rise: Floats) -> Floats:
    """S x J: dy/dx at the points, 0 where the curve turns. `h`: widths, J - 1; `rise`: S x J - 1."""
    if rise.shape[1] == 1:
        return np.repeat(rise, 2, axis=1)
    left, right = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    on = rise[:, :-1] * rise[:, 1:] > 0
    safe = np.where(on[:, :, None], np.stack([rise[:, :-1], rise[:, 1:]], axis=2), 1.0)
    inner = np.where(on, (left + right) / (left / safe[:, :, 0] + right / safe[:, :, 1]), 0.0)
    first = _end(h[0], h[1], rise[:, 0], rise[:, 1])
    last = _end(h[-1], h[-2], rise[:, -1], rise[:, -2])
    return np.concatenate([first[:, None], inner, last[:, None]], axis=1)


def _end(h0: float, h1: float, near: Floats, far: Floats) -> Floats:
    """The slope at an end, from the rise of the two intervals next to it."""
    slope = ((2 * h0 + h1) * near - h0 * far) / (h0 + h1)
    slope = np.where(slope * near <= 0, 0.0, slope)
    steep: Floats = np.where((near * far < 0) & (np.abs(slope) > 3 * np.abs(near)), 3 * near, slope)
    return steep
