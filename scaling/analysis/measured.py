"""A number that knows how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

LAUNCHES_MIN = 3
"""From so many launches on, an interval covers what differs between launches, which are its units then."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A number with its 95 % interval. `low` and `high` are None where the data bear no interval.

    `n` counts the independent units (rounds of blocks, or launches) behind it, not steps.
    """

    value: float
    low: float | None = None
    high: float | None = None
    n: int = 0

    @property
    def half_width(self) -> float | None:
        """Half the interval's length, None without one."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2
