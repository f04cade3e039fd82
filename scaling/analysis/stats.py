"""Point estimates and intervals from rounds of blocks. Pure functions of arrays.

The independent unit is the round: one block of every arm, in random order, close together in
time. Steps inside a block are autocorrelated and are averaged first. A statistic is a formula
over the arms' means; resampling draws whole rounds, so whatever the arms of a round share
(drift of the machine) cancels in differences and ratios, as in a paired test.

An interval is estimate +- t * se (of the logarithm for ratios, rates and times, so that none reaches
below zero), where se is the bootstrap's standard deviation times
sqrt(R/(R-G)) and t is Student's quantile at R-G degrees of freedom, with G groups (launches) of which
each is drawn by itself, else one: with few rounds the plain percentile bootstrap is too narrow by
just these two factors (T. Hesterberg, "What Teachers Should Know About the Bootstrap", The American
Statistician 69(4), 2015, section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from scaling.analysis.measured import LAUNCHES_MIN, Measured

Floats = NDArray[np.float64]
Formula = Callable[["Means"], Floats]

RESAMPLES = 1000
LEVEL = 0.95
UNITS_MIN = 3
"""Below three rounds there is no interval."""


class UnknownQuantityError(KeyError):
    """A formula asked for something that was not measured."""


class Means(Mapping[str, Floats]):
    """Mean of every quantity: element 0 over all rounds, the others over resampled rounds."""

    def __init__(self, values: Mapping[str, Floats], weights: Floats) -> None:
        self._values, self._weights = values, weights
        self._cache: dict[str, Floats] = {}
        self.there: dict[str, NDArray[np.bool_]] = {}
        """Which rounds have each of the quantities asked for so far."""

    def __getitem__(self, name: str) -> Floats:
        if name not in self._cache:
            if name not in self._values or not np.isfinite(self._values[name]).any():
                raise UnknownQuantityError(name)
            values = self._values[name]
            there = np.isfinite(values)
            self.there[name] = there
            with np.errstate(invalid="ignore", divide="ignore"):
                total = self._weights @ np.where(there, values, 0.0)
                self._cache[name] = total / (self._weights @ there)
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
    ) -> None:
        """`unit`: rounds that share a number are drawn together; by default each is drawn by itself.

        `part`: parts of a launch that measured different things; as many rounds are drawn of each as it has.
        """
        self.values = dict(values)
        self.launch = launch
        self.unit = np.arange(len(launch)) if unit is None else unit
        self.part = np.zeros_like(launch) if part is None else part
        self._weights = resampling_weights(launch, seed, self.unit, part)

    def __contains__(self, name: str) -> bool:
        return name in self.values and bool(np.isfinite(self.values[name]).any())

    def extend(self, values: Mapping[str, Floats]) -> Rounds:
        """The same rounds with more quantities."""
        grown = object.__new__(Rounds)
        grown.values = {**self.values, **values}
        grown.launch, grown.unit, grown.part = self.launch, self.unit, self.part
        grown._weights = self._weights
        return grown

    def means(self) -> Means:
        """Every quantity's mean and its resampled values."""
        return Means(self.values, self._weights)

    def ratio(self, formula: Formula | str, *, level: float = LEVEL) -> Measured | None:
        """As `measure`, for what is positive by nature: the interval is one of the logarithm."""
        return self.measure(formula, positive=True, level=level)

    def measure(
        self, formula: Formula | str, *, positive: bool = False, level: float = LEVEL
    ) -> Measured | None:
        """A formula over the means (or one quantity by name) with its interval; None where unknown."""
        of = (lambda m: m[formula]) if isinstance(formula, str) else formula
        try:
            means = self.means()
            results = np.asarray(of(means), dtype=float)
        except UnknownQuantityError:
            return None
        if not np.isfinite(results[0]):
            return None
        units, groups = self.count(list(means.there.values()))
        return interval(float(results[0]), results[1:], units, groups=groups, positive=positive, level=level)

    def count(self, there: Sequence[NDArray[np.bool_]] = ()) -> tuple[int, int]:
        """As `drawn`, of the rounds that have every quantity; where some share no round, the fewest that any has."""
        shared = np.logical_and.reduce(there) if there else np.ones(len(self.launch), dtype=bool)
        masks = [shared] if shared.any() or not there else there
        several = len(np.unique(self.launch)) >= LAUNCHES_MIN
        return min(
            (drawn(self.launch[mask], self.unit[mask], self.part[mask], several=several) for mask in masks),
            key=lambda units_groups: units_groups[0] - units_groups[1],
        )


def drawn(
    launch: NDArray[np.int64],
    unit: NDArray[np.int64] | None = None,
    part: NDArray[np.int64] | None = None,
    *,
    several: bool | None = None,
) -> tuple[int, int]:
    """How many units `resampling_weights` draws, and from how many groups, each by itself.

    `several`: whether launches are what is drawn, which all rounds decide; by default these.
    """
    launches = np.unique(launch)
    if len(launches) >= LAUNCHES_MIN if several is None else several:
        return len(launches), 1
    units = len(launch) if unit is None else len(np.unique(unit))
    groups = len(launches) if part is None else len(np.unique(np.stack([launch, part]), axis=1).T)
    return units, max(groups, 1)


def resampling_weights(
    launch: NDArray[np.int64],
    seed: int,
    unit: NDArray[np.int64] | None = None,
    part: NDArray[np.int64] | None = None,
) -> Floats:
    """Rows of weights over rounds: the plain mean first, then RESAMPLES draws.

    With LAUNCHES_MIN launches or more, launches are drawn first and rounds within each (hierarchical
    bootstrap); with fewer, rounds within each launch, and the interval holds for these launches.
    Rounds of one `unit` are drawn together, and each `part` of a launch by itself.
    """
    rng = np.random.default_rng(seed)
    rounds = len(launch)
    weights = np.zeros((RESAMPLES + 1, rounds))
    weights[0] = 1.0
    unit = np.arange(rounds) if unit is None else unit
    launches = np.unique(launch)
    if part is None or len(launches) >= LAUNCHES_MIN:
        groups = [np.unique(unit[launch == k]) for k in launches]
    else:
        groups = [np.unique(unit[(launch == k) & (part == p)]) for k in launches for p in np.unique(part)]
    members = np.array([unit == u for u in range(unit.max(initial=-1) + 1)], dtype=float)
    for row in range(1, RESAMPLES + 1):
        drawn = (
            rng.integers(len(groups), size=len(groups))
            if len(launches) >= LAUNCHES_MIN
            else range(len(groups))
        )
        for index in drawn:
            group = groups[index]
            if not len(group):
                continue
            weights[row] += np.bincount(rng.choice(group, size=len(group)), minlength=len(members)) @ members
    return weights


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

    `groups`: each of them was drawn by itself and has a mean of its own; every one beyond the first wants a unit more.
    """
    finite = resampled[np.isfinite(resampled) & ((resampled > 0) | (not positive))]
    free = units - groups
    if free < UNITS_MIN - 1 or len(finite) < RESAMPLES / 2:
        return Measured(value=value, n=units)
    spread = float(np.std(np.log(finite) if positive else finite))
    half = student(free, level) * spread * (units / free) ** 0.5
    if positive and value > 0:
        return Measured(value=value, low=value * math.exp(-half), high=value * math.exp(half), n=units)
    return Measured(value=value, low=value - half, high=value + half, n=units)


def student(degrees: int, level: float = LEVEL) -> float:
    """Two-sided quantile of Student's t, 95 % unless another level is asked for."""
    from scipy.special import stdtrit  # noqa: PLC0415  slow to import, and not always asked for

    return float(stdtrit(degrees, 1 - (1 - level) / 2))


def level_of_each(comparisons: int) -> float:
    """The level at which so many intervals hold all at once (Bonferroni): of a hundred at 95 %, some are out."""
    return 1 - (1 - LEVEL) / comparisons


def among(ratio: Measured, comparisons: int) -> Measured:
    """A ratio of two runs with an interval for so many like it at once, where those of one are all that is known."""
    if ratio.low is None or ratio.high is None or ratio.n < 2:
        return ratio
    wider = student(ratio.n - 1, level_of_each(comparisons)) / student(ratio.n - 1)
    low, high = (ratio.value + (edge - ratio.value) * wider for edge in (ratio.low, ratio.high))
    return Measured(value=ratio.value, low=low, high=high, n=ratio.n)


def distinguishable(ratio: Measured | None, floor: float = 0.0) -> bool:
    """Whether a ratio's interval leaves 1 by more than `floor` (a fraction)."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return False
    return ratio.low > 1 + floor or ratio.high < 1 - floor


def departure(ratio: Measured | None) -> float:
    """How far from 1 a ratio's interval reaches; of an A/A floor, how far apart equal arms come out by chance."""
    if ratio is None:
        return 0.0
    return max(abs(x - 1) for x in (ratio.value, ratio.low, ratio.high) if x is not None)


def widened(number: Measured | None, by: float) -> Measured | None:
    """The same number with `by` more on either side, a bound that no resampling shows; not below zero for it."""
    if number is None or number.low is None or number.high is None or not by:
        return number
    low = max(number.low - by, min(number.low, 0.0))
    return Measured(value=number.value, low=low, high=number.high + by, n=number.n)


def no_finer(number: Measured | None, share: float) -> Measured | None:
    """The same number with an interval of at least `share` (a fraction of it) on either side.

    The spread of a few rounds is itself known badly, and now and then comes out far too small. What
    equal blocks differ by (the A/A floor) is the least that an absolute figure can claim.
    """
    if number is None or number.low is None or number.high is None:
        return number
    by = abs(number.value) * share
    low, high = min(number.low, number.value - by), max(number.high, number.value + by)
    return Measured(value=number.value, low=low, high=high, n=number.n)


@overload
def scaled(number: Measured, factor: float) -> Measured: ...
@overload
def scaled(number: Measured | None, factor: float) -> Measured | None: ...
def scaled(number: Measured | None, factor: float) -> Measured | None:
    """The same number in another unit."""
    if number is None:
        return None
    low = None if number.low is None else number.low * factor
    high = None if number.high is None else number.high * factor
    return Measured(value=number.value * factor, low=low, high=high, n=number.n)
