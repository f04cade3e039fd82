"""Point estimates and intervals from rounds of blocks. Pure functions of arrays.

The independent unit is the round: one block of every arm, in random order, close together in time. Steps inside a
block are autocorrelated and are averaged first. A statistic is a formula over the arms' means. Resampling draws whole
rounds, so what the arms of a round share (drift of the machine) cancels in differences and ratios, as in a paired test.

An interval is estimate +- t * se (of the logarithm for ratios, rates and times, so that it stays above 0). With R
rounds in G groups that are resampled separately (launches, else one group), se is the bootstrap's standard deviation
times sqrt(R/(R-G)), and t is Student's quantile at R-G degrees of freedom. With few rounds, the plain percentile
bootstrap is too narrow by these two factors (T. Hesterberg, "What Teachers Should Know About the Bootstrap", The
American Statistician 69(4), 2015, section 4).

How late the latest of many is.

Percentiles of many values, and medians of few, each with its interval.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.results.measured import LAUNCHES_MIN, Measured
from scaling.analysis.statistics.resampling import RESAMPLES, drawn, resampling_weights

Floats = NDArray[np.float64]
Formula = Callable[["Means"], Floats]

LEVEL = 0.95
MS = 1e-6
"""From ns to ms."""
UNITS_MIN = 3
"""With fewer units there is no interval."""


class UnknownQuantityError(KeyError):
    """A formula asked for something that was not measured."""


class Means(Mapping[str, Floats]):
    """Mean of every quantity: element 0 over all rounds, the others over resampled rounds."""

    def __init__(
        self, values: Mapping[str, Floats], weights: Floats, whole: NDArray[np.bool_] | None = None
    ) -> None:
        """`whole`: as of Rounds."""
        self._values, self._weights, self._whole = values, weights, whole
        self._among: NDArray[np.bool_] | None = None
        self._cache: dict[str, Floats] = {}
        self.present: list[NDArray[np.bool_]] = []
        """Rounds that have a quantity, for each quantity asked for so far."""

    @functools.cached_property
    def paired(self) -> Means:
        """Means over the whole rounds alone, so that what drifts from round to round cancels in a difference."""
        if self._whole is None:
            return self
        paired = Means(self._values, self._weights)
        paired._among, paired.present = self._whole, self.present
        return paired

    def __getitem__(self, name: str) -> Floats:
        if name not in self._cache:
            if name not in self._values or not np.isfinite(self._values[name]).any():
                raise UnknownQuantityError(name)
            values = self._values[name]
            present = np.isfinite(values) if self._among is None else np.isfinite(values) & self._among
            self.present.append(present)
            with np.errstate(invalid="ignore", divide="ignore"):
                total = self._weights @ np.where(present, values, 0.0)
                self._cache[name] = total / (self._weights @ present)
        return self._cache[name]

    def __iter__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Rounds:
    """Named quantities, one value a round (NaN where a round lacks it), and the launch of each round."""

    def __init__(
        self,
        values: Mapping[str, Floats],
        launch: NDArray[np.int64],
        *,
        seed: int = 0,
        unit: NDArray[np.int64] | None = None,
        part: NDArray[np.int64] | None = None,
        whole: NDArray[np.bool_] | None = None,
    ) -> None:
        """`unit`: rounds with the same number are drawn together; by default each round is drawn separately.

        `part`: parts of a launch that measured different things; each part keeps its number of rounds. `whole`: the
        rounds with all quantities, where the plan gave others only some; they are such a part.
        """
        part = part if whole is None else whole.astype(np.int64)
        self.values = dict(values)
        self.launch = launch
        self.unit = np.arange(len(launch)) if unit is None else unit
        self.part = np.zeros_like(launch) if part is None else part
        self.whole = whole
        self.weights = resampling_weights(launch, seed, self.unit, part)

    def __contains__(self, name: str) -> bool:
        return name in self.values and bool(np.isfinite(self.values[name]).any())

    def extend(self, values: Mapping[str, Floats]) -> Rounds:
        """These rounds with more quantities."""
        grown = copy.copy(self)
        grown.values = {**self.values, **values}
        return grown

    def means(self) -> Means:
        """Every quantity's mean and its resampled values."""
        return Means(self.values, self.weights, self.whole)

    def ratio(self, formula: Formula | str, *, scale: float = 1.0, level: float = LEVEL) -> Measured | None:
        """As `measure`, for quantities that are always positive: the interval is one of the logarithm."""
        return self.measure(formula, scale=scale, positive=True, level=level)

    def measure(
        self, formula: Formula | str, *, scale: float = 1.0, positive: bool = False, level: float = LEVEL
    ) -> Measured | None:
        """A formula over the means (or one quantity by name) with its interval; None where unknown.

        `scale` brings the result to another unit, as MS does from ns to ms.
        """
        evaluate = (lambda m: m[formula]) if isinstance(formula, str) else formula
        try:
            means = self.means()
            results = np.asarray(evaluate(means), dtype=float)
        except UnknownQuantityError:
            return None
        if not np.isfinite(results[0]):
            return None
        units, groups = self.count(means.present)
        whole, resampled = float(results[0]), results[1:]
        return interval(whole, resampled, units, groups=groups, positive=positive, level=level) * scale

    def agreed(self, formula: Formula, number: Measured | None) -> Measured | None:
        """`number`, as `measure(formula)` gives it; its interval reaches 0 where single rounds do not agree on it.

        They agree where half of them show half of it or more. Else a few rounds make the mean, in which something else
        ran, and what it measures is not in every step.
        """
        if number is None or number.low is None or number.low <= 0:
            return number
        with np.errstate(invalid="ignore", divide="ignore"):
            each = formula(Means(self.values, np.eye(len(self.launch)), self.whole))
        each = each[np.isfinite(each)]
        agree = not len(each) or np.median(each) >= number.value / 2  # a baseline may have rounds of its own
        return number if agree else dataclasses.replace(number, low=0.0)

    def count(self, present: Sequence[NDArray[np.bool_]] = ()) -> tuple[int, int]:
        """As `drawn`, for the rounds that have every quantity; if none has all, the fewest that a quantity has."""
        shared = np.logical_and.reduce(present) if present else np.ones(len(self.launch), dtype=bool)
        masks = [shared] if shared.any() or not present else present
        several = len(np.unique(self.launch)) >= LAUNCHES_MIN
        return min(
            (drawn(self.launch[mask], self.unit[mask], self.part[mask], several=several) for mask in masks),
            key=lambda units_groups: units_groups[0] - units_groups[1],
        )


def interval(
    value: float,
    resampled: Floats,
    units: int,
    *,
    groups: int = 1,
    positive: bool = False,
    level: float = LEVEL,
) -> Measured:
    """`value` with its interval (95 %) from resampled values; none below UNITS_MIN units.

    `groups`: they are drawn separately and each has its own mean, so each group beyond the first needs one more unit.
    """
    finite = resampled[np.isfinite(resampled) & ((resampled > 0) | (not positive))]
    free = units - groups
    if free < UNITS_MIN - 1 or len(finite) < RESAMPLES / 2:
        return Measured(value, n=units)
    spread = float(np.std(np.log(finite) if positive else finite))
    half = student(free, level) * spread * (units / free) ** 0.5
    if positive and value > 0:
        return Measured.around_log(value, half, units)
    return Measured.around(value, half, units)


def student(degrees: int, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, 95 % unless another level is asked for."""
    from scipy.special import stdtrit  # noqa: PLC0415  slow to import, and not always asked for

    return float(stdtrit(degrees, 1 - (1 - level) / 2))


def chance(number: Measured, bound: float = 0.0) -> float:
    """Probability of a value so far above `bound`, or farther, if the truth is not above it; 1 without an interval."""
    if number.low is None or number.n < 2 or number.low >= number.value:
        return 1.0
    return beyond((number.value - bound) / (number.value - number.low) * student(number.n - 1), number.n - 1)


def beyond(t: float, degrees: int) -> float:
    """Probability that Student's t is larger."""
    from scipy.special import stdtr  # noqa: PLC0415  slow to import, and not always asked for

    return float(stdtr(degrees, -t))


def equal_arms_apart(rounds: Rounds, names: Sequence[str]) -> Measured | None:
    """By how much two equal arms come out apart in 95 % of such runs, as a fraction; `n` counts degrees of freedom.

    The spread is that of the logarithm of all these arms' blocks around their round and their arm (two-way residuals),
    so a few rounds that agree by chance do not hide it. Blocks lie as far apart in a round as those of two arms do.
    None where fewer than two arms have two rounds in common.
    """
    arms = [rounds.values[name] for name in names if name in rounds]
    if not arms:
        return None
    logs = np.log(np.stack(arms, axis=1))  # rounds x arms
    logs = logs[np.isfinite(logs).all(axis=1)]
    degrees, spread = two_way(logs)
    if degrees < 1:
        return None
    return Measured(math.expm1(student(degrees) * spread * math.sqrt(2 / len(logs))), n=degrees)


def two_way(values: Floats) -> tuple[int, float]:
    """(degrees of freedom, standard deviation) of what rows and columns together do not explain; 0 degrees: nan."""
    degrees = (values.shape[0] - 1) * (values.shape[1] - 1)
    if degrees < 1:
        return 0, math.nan
    left = values - values.mean(axis=0) - values.mean(axis=1, keepdims=True) + values.mean()
    return degrees, float(np.sqrt((left**2).sum() / degrees))


def level_of_each(comparisons: int) -> float:
    """The level of each interval so that all of them hold at once with 95 % (Bonferroni)."""
    return 1 - (1 - LEVEL) / comparisons


def among(ratio: Measured, comparisons: int) -> Measured:
    """A ratio of two runs with an interval that holds for `comparisons` such ratios at once."""
    if ratio.n < 2:
        return ratio
    return ratio.stretched(student(ratio.n - 1, level_of_each(comparisons)) / student(ratio.n - 1))


def latest(ranks: int) -> float:
    """Expected largest of n standard normal draws: the integral of 1 - F^n above 0 less that of F^n below."""
    if ranks == 1:
        return 0.0
    from scipy.special import log_ndtr  # noqa: PLC0415  slow to import

    above = np.linspace(0.0, 10.0, 4001)
    falls = 1 - np.exp(ranks * log_ndtr(above)) - np.exp(ranks * log_ndtr(-above))
    return float(((falls[1:] + falls[:-1]) / 2 * np.diff(above)).sum())  # by trapezia


BEYOND_MIN = 1
"""A percentile needs at least this many values beyond it: p99 needs 100 values."""
BINS_MAX = 4096
"""Values are sorted into at most this many bins before rounds are resampled, so ranks are exact to 1/4096."""
MEDIAN_MIN = 6
"""With fewer values, no order statistics hold the median in 95 % of cases."""


def percentiles(
    values: Floats,
    unit: NDArray[np.integer],
    weights: Floats,
    shares: Sequence[float],
    units_groups: tuple[int, int],
) -> list[Measured | None]:
    """For each share, the value that this share of all values does not exceed, with its interval.

    `values` and `unit`, V: each value and the round that it is from. `weights`, (1 + resamplings) x rounds: as measured
    first. `units_groups`: as `drawn` of statistics.resampling returns them. None where fewer than BEYOND_MIN values lie
    beyond.
    """
    order = np.argsort(values, kind="stable")
    parts = np.array_split(order, min(len(order), BINS_MAX))
    counts = np.stack([np.bincount(unit[part], minlength=weights.shape[1]) for part in parts], axis=1)
    top = np.array([values[part[-1]] for part in parts])
    cumulated = np.cumsum(weights @ counts, axis=1)
    numbers: list[Measured | None] = []
    for share in shares:
        if len(values) * (1 - share) < BEYOND_MIN - 1e-9:
            numbers.append(None)
            continue
        place = (cumulated < share * cumulated[:, -1:] - 1e-9).sum(axis=1)
        at = top[np.minimum(place, len(top) - 1)]
        units, groups = units_groups
        numbers.append(interval(float(at[0]), at[1:], units, groups=groups, positive=True))
    return numbers


def median(values_ns: Sequence[int]) -> Measured | None:
    """The median, ms, with the order statistics that hold it in about 95 % of cases; None without values."""
    values = sorted(v * MS for v in values_ns)
    n = len(values)
    if not n:
        return None
    middle = (values[(n - 1) // 2] + values[n // 2]) / 2
    if n < MEDIAN_MIN:
        return Measured(middle, n=n)
    low = max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)))
    return Measured(middle, values[low], values[n - 1 - low], n)
