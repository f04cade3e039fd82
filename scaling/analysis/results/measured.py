"""A number with its interval, and the arithmetic that keeps the two together.

Two measured numbers are combined as independent ones: half-widths add in quadrature (of the ratio: relative ones).
What was measured in the same rounds is not independent; its formula goes through `scaling.analysis.statistics.rounds`,
which resamples the rounds. A plain number has no error, so it scales or shifts both ends alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from scaling.units import UNKNOWN

LAUNCHES_MIN = 3
"""With this many launches or more, the interval covers what differs between launches, and `n` counts launches."""
WIDE = 5.0
"""An interval to more than WIDE times its value, whose ends are more than WIDE x WIDE times apart, tells nothing."""
DIGITS = 4
"""A value is shown with this many significant digits at most, however narrow its interval is."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A number with its 95 % interval. `low` and `high` are None where the data give no interval.

    `n` counts the independent units (rounds of blocks, or launches) behind it, not steps.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0

    @classmethod
    def around(cls, value: float, half_width: float | None, n: int) -> Measured:
        """`value` ± `half_width`; without an interval where that is None."""
        if half_width is None:
            return cls(value, n=n)
        return cls(value, value - half_width, value + half_width, n)

    @classmethod
    def around_log(cls, value: float, half_width: float | None, n: int) -> Measured:
        """`value` with an interval that is symmetric in the logarithm, so that it stays above 0."""
        if half_width is None:
            return cls(value, n=n)
        return cls(value, value * math.exp(-half_width), value * math.exp(half_width), n)

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high); None without an interval."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        """Half of the interval's length; None without an interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def log_half_width(self) -> float | None:
        """Half of the length of the logarithm's interval; None without an interval, or where it reaches 0."""
        if self.low is None or self.high is None or self.low <= 0:
            return None
        return math.log(self.high / self.low) / 2

    @property
    def least(self) -> float:
        """The interval's lower end, or the value where there is no interval."""
        return self.value if self.low is None else self.low

    @property
    def most(self) -> float:
        """The interval's upper end, or the value where there is no interval."""
        return self.value if self.high is None else self.high

    @property
    def tells(self) -> bool:
        """False where the interval of a number above 0 is too wide to tell anything (WIDE); reports say unknown."""
        if self.low is None or self.high is None:
            return True
        return not (self.low > 0 and self.high > WIDE * max(self.value, WIDE * self.low))

    def holds(self, number: float) -> bool:
        """Whether the interval contains a number; False without an interval."""
        return self.low is not None and self.high is not None and self.low <= number <= self.high

    def surely_above(self, bound: float | Measured) -> bool:
        """Whether the whole interval lies above a number, or above the other's interval; False if one is too wide."""
        top = bound.high if isinstance(bound, Measured) else bound
        return self.low is not None and top is not None and self.low > top and _tell(self, bound)

    def surely_below(self, bound: float | Measured) -> bool:
        """Whether the whole interval lies below a number, or below the other's interval; False if one is too wide."""
        bottom = bound.low if isinstance(bound, Measured) else bound
        return self.high is not None and bottom is not None and self.high < bottom and _tell(self, bound)

    def differs_from(self, number: float, by: float = 0.0) -> bool:
        """Whether the whole interval lies more than `by` above or below a number."""
        return self.surely_above(number + by) or self.surely_below(number - by)

    def departure(self, number: float = 1.0) -> float:
        """The distance from a number to the farthest point of the interval (to the value without an interval)."""
        return max(abs(x - number) for x in (self.value, self.low, self.high) if x is not None)

    def mapped(self, function: Callable[[float], float]) -> Measured:
        """The value and both ends through a rising function."""
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return Measured(function(self.value), low, high, self.n)

    def widened(self, by: float) -> Measured:
        """With `by` more on either side, for a bound that resampling cannot show. This does not take `low` below 0."""
        if self.low is None or self.high is None or not by:
            return self
        return replace(self, low=max(self.low - by, min(self.low, 0.0)), high=self.high + by)

    def stretched(self, factor: float) -> Measured:
        """With both sides of the interval `factor` times as long."""
        return self.mapped(lambda end: self.value + (end - self.value) * factor)

    def with_error(self, by: float) -> Measured:
        """With an independent error `by` added to each side in quadrature. What was above 0 stays above 0."""
        if self.low is None or self.high is None or not by:
            return self
        below, above = (math.hypot(end - self.value, by) for end in (self.low, self.high))
        low = self.value - below
        if self.low > 0:
            low = max(low, self.value / (1 + below / self.value))
        return replace(self, low=low, high=self.value + above)

    def no_finer(self, share: float) -> Measured:
        """With at least `share` (a fraction of the value) on either side.

        A few rounds do not give their own spread reliably, and now and then it comes out far too small. An absolute
        figure cannot be known better than equal blocks agree (the A/A floor).
        """
        if self.low is None or self.high is None:
            return self
        by = abs(self.value) * share
        return replace(self, low=min(self.low, self.value - by), high=max(self.high, self.value + by))

    def not_below(self, bound: float) -> Measured:
        """With the interval cut off at `bound`, below which the quantity cannot lie."""
        return self if self.low is None else replace(self, low=max(self.low, bound))

    def __neg__(self) -> Measured:
        return self * -1.0

    def __add__(self, other: float | Measured) -> Measured:
        if isinstance(other, Measured):
            half = _quadrature(self.half_width, other.half_width)
            return Measured.around(self.value + other.value, half, min(self.n, other.n))
        return self.mapped(lambda x: x + other)

    __radd__ = __add__

    def __sub__(self, other: float | Measured) -> Measured:
        return self + -other

    def __rsub__(self, other: float) -> Measured:
        return -self + other

    def __mul__(self, factor: float | Measured) -> Measured:
        if isinstance(factor, Measured):
            halves = [
                None if a.half_width is None else b.value * a.half_width
                for a, b in ((self, factor), (factor, self))
            ]
            return Measured.around(self.value * factor.value, _quadrature(*halves), min(self.n, factor.n))
        scaled = self.mapped(lambda x: x * factor)
        return scaled if factor >= 0 else replace(scaled, low=scaled.high, high=scaled.low)

    __rmul__ = __mul__

    def __truediv__(self, other: float | Measured) -> Measured:
        if not isinstance(other, Measured):
            return self.mapped(lambda x: x / other)
        value = self.value / other.value
        shares = [None if m.half_width is None else m.half_width / m.value for m in (self, other)]
        share = _quadrature(*shares)
        half = None if share is None else abs(value) * share
        return Measured.around(value, half, min(self.n, other.n))

    def __rtruediv__(self, over: float) -> Measured:
        """`over` / the number, `over` above 0; without an interval where the number's own reaches 0."""
        value = over / self.value
        if self.low is None or self.high is None or self.low <= 0:
            return Measured(value, n=self.n)
        return Measured(value, over / self.high, over / self.low, self.n)

    def decimals(self, scale: float = 1.0) -> int | None:
        """Decimals that the interval justifies for value x `scale`; None without an interval.

        The half-width is shown with one digit, or with two where it starts with 1; the value with as many decimals,
        but with no more than DIGITS significant digits.
        """
        half = self.half_width
        if not half or not math.isfinite(half):
            return None
        digits, place = f"{half * scale:.1e}".split("e")
        justified = -int(place) + (float(digits) < 2)
        value = abs(self.value * scale)
        most = DIGITS - 1 - math.floor(math.log10(value)) if value > 0 else justified
        return max(0, min(justified, most))

    def __str__(self) -> str:
        if not self.tells:
            return UNKNOWN
        decimals = self.decimals()
        if decimals is None or self.half_width is None:
            return f"{self.value:.4g}"
        return f"{self.value:.{decimals}f} ±{max(self.half_width, 10.0**-decimals):.{decimals}f}"


def mean_of(numbers: Sequence[Measured]) -> Measured:
    """The mean, with the mean of the intervals: errors that the numbers have in common do not average out."""
    ends = [m.interval for m in numbers if m.interval is not None]
    value, n = sum(m.value for m in numbers) / len(numbers), min(m.n for m in numbers)
    if len(ends) < len(numbers):
        return Measured(value, n=n)
    low, high = (sum(side) / len(numbers) for side in zip(*ends, strict=True))
    return Measured(value, low, high, n)


def _tell(*numbers: float | Measured) -> bool:
    return all(number.tells for number in numbers if isinstance(number, Measured))


def _quadrature(*errors: float | None) -> float | None:
    """The root of the sum of squares; None where an error is not known."""
    given = [error for error in errors if error is not None]
    return sum(error**2 for error in given) ** 0.5 if len(given) == len(errors) else None


def ratio_of(top: Measured | None, bottom: Measured | None) -> Measured | None:
    """`top` over `bottom`; None where either is not known.

    A ratio of rates cannot be 0 or less, and neither can the ends of its interval.
    """
    if not (top and bottom and bottom.value):
        return None
    ratio, halves = top / bottom, [number.log_half_width for number in (top, bottom)]
    given = [half for half in halves if half is not None]
    if ratio.least > 0 or len(given) < len(halves):
        return ratio
    return Measured.around_log(ratio.value, math.hypot(*given), ratio.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtSize:
    """Something that was found at one world size."""

    world_size: int


Result = TypeVar("Result", bound=AtSize)


def at(world_size: int, results: Iterable[Result]) -> Result | None:
    """The first result of a world size; None where there is none."""
    return next((result for result in results if result.world_size == world_size), None)
