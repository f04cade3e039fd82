"""The size sweep of collectives in nccl-tests' terms, two descriptions of the link that it gives, and links of levels.

`AlphaBeta` is a line through the all-reduce's times, for the loss by cause and the report:

    T(m) = 2 (n-1) (alpha + m beta / n)        ring all-reduce of m bytes over n ranks
    algbw = m / T,  busbw = algbw * 2 (n-1) / n

alpha is per hop; 1/beta is the bandwidth that large messages approach. Source of busbw: nccl-tests,
doc/PERFORMANCE.md; of the cost model: Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), 2005.

`Points` is the measured curve, for predictions at the measured world size and link. Protocols and algorithms have their
own ranges of sizes, so the line errs in the middle ones (`fit_error`). Between two measured sizes the logarithm of time
is a cubic of the logarithm of size that rises or falls as the points do (F. N. Fritsch, J. Butland, SIAM J. Sci. Stat.
Comput. 5(2), 1984, with the end slopes of C. Moler, Numerical Computing with MATLAB, section 3.6). Below the smallest
size the time stays, above the largest the bandwidth stays.

Over links of several levels, within hosts and between them, a ring over n ranks that fill one host after the other
takes 2 (n-1) steps. A chunk passes every edge in turn, so latencies add up over the edges that it crosses; all edges
work at once, so the slowest sets the pace:

    T(m) = 2 (n-1) (alpha + m beta / n),   alpha = mean over the edges,   beta = the largest over the levels in use

where beta of a level between hosts is that of a whole host's link. NCCL's own cost model for its ring counts the
same edges (src/graph/tuning.cc: nsteps - nInterSteps and nInterSteps hops, the ring's least bandwidth).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from scaling.analysis.network import cliffs
from scaling.analysis.network.links import bus_factor
from scaling.analysis.results import CurvePoint, FabricLevel, Measured
from scaling.analysis.statistics.rounds import Floats, Means, Rounds, UnknownQuantityError
from scaling.records.tables import Frame, in_memory
from scaling.settings.plan import Plan
from scaling.settings.run import KINDS


class NoPathError(ValueError):
    """The known levels do not connect all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerHop:
    """Time of a hop beyond bandwidth, ns, by size of the message: a segmented ring hides latency in large ones."""

    sizes: tuple[int, ...]
    """J, rising, bytes."""
    values: Floats
    """S x J."""

    def at(self, size: float) -> Floats:
        """S: linear in the logarithm of the size between known sizes, constant beyond them."""
        knots = np.log(self.sizes)
        place = float(np.interp(np.log(max(size, 1.0)), knots, np.arange(len(knots))))
        left = int(place)
        low, high = self.values[:, left], self.values[:, min(left + 1, len(knots) - 1)]
        result: Floats = low + (place - left) * (high - low)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """One level of links; beta in ns/byte, S."""

    name: str
    ranks: int | None
    """How many ranks it connects; None: any number."""
    alpha: PerHop
    beta_ns: Floats

    def part(self, stretch: slice) -> Hops:
        """A stretch of the S; slice(1): the estimates alone."""
        alpha = replace(self.alpha, values=self.alpha.values[stretch])
        return replace(self, alpha=alpha, beta_ns=self.beta_ns[stretch])


def ring_times(
    levels: Sequence[Hops], ranks: int | Sequence[int], sizes: Sequence[float], *, beside: float = 1.0
) -> tuple[Floats, Floats]:
    """(latency, rest) of an all-reduce of each size over a ring of ranks, ns, S x K.

    `levels` from the innermost out. `ranks`: how many of the first ones, or which, by their places: host after host.
    `beside`: how many times a rank's bytes a host's link carries (shared_link.Placed). NoPathError where the levels do
    not join the ranks.
    """
    places = np.arange(ranks) if isinstance(ranks, int) else np.asarray(ranks)
    n = len(places)
    after = np.roll(places, -1)
    left = np.ones(n, bool)  # edges that no level has joined yet
    hops: list[tuple[int, Hops]] = []
    for level in levels:
        joined = left if level.ranks is None else left & (places // level.ranks == after // level.ranks)
        if n > 1 and joined.any():
            hops.append((int(joined.sum()), level))
        left = left & ~joined
    if n > 1 and left.any():
        reach = max((level.ranks or 0 for level in levels), default=1)
        raise NoPathError(f"{levels[-1].name if levels else 'no link'} joins {reach} ranks")
    latency = [sum((count * level.alpha.at(size) for count, level in hops), np.zeros(1)) for size in sizes]
    betas = [np.atleast_1d(level.beta_ns) * (beside if level.ranks is None else 1.0) for _, level in hops]
    beta = np.max(betas, axis=0) if hops else np.zeros(1)
    rest = [2 * (n - 1) / n * size * beta for size in sizes]
    return np.stack(latency, axis=-1) * 2 * (n - 1) / n, np.stack(rest, axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A measured curve of times by size: S rows, the estimate first, then resampled values."""

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
        slope = _log_slopes(h, rise)
        s = np.log(size) - x[k]
        c = (3 * rise[:, k] - 2 * slope[:, k] - slope[:, k + 1]) / h[k]
        b = (slope[:, k] - 2 * rise[:, k] + slope[:, k + 1]) / h[k] ** 2
        times: Floats = np.exp(y[:, k] + s * (slope[:, k] + s * (c + s * b)))
        return times


def _log_slopes(h: Floats, rise: Floats) -> Floats:
    """S x J: dy/dx at the points, 0 where the curve turns. `h`: widths, J - 1; `rise`: S x J - 1."""
    if rise.shape[1] == 1:
        return np.repeat(rise, 2, axis=1)
    left, right = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    monotone = rise[:, :-1] * rise[:, 1:] > 0
    safe = np.where(monotone[:, :, None], np.stack([rise[:, :-1], rise[:, 1:]], axis=2), 1.0)
    inner = np.where(monotone, (left + right) / (left / safe[:, :, 0] + right / safe[:, :, 1]), 0.0)
    first = _end_slope(h[0], h[1], rise[:, 0], rise[:, 1])
    last = _end_slope(h[-1], h[-2], rise[:, -1], rise[:, -2])
    return np.concatenate([first[:, None], inner, last[:, None]], axis=1)


def _end_slope(h0: float, h1: float, near: Floats, far: Floats) -> Floats:
    """The slope at an end, from the rise of the two intervals next to it."""
    slope = ((2 * h0 + h1) * near - h0 * far) / (h0 + h1)
    slope = np.where(slope * near <= 0, 0.0, slope)
    return np.where((near * far < 0) & (np.abs(slope) > 3 * np.abs(near)), 3 * near, slope)


LARGE_BYTES = 2**18
"""beta is fitted to messages of this size and above; below, fixed costs and an emulated link's burst dominate."""
SMALL_BYTES = 2**12
"""alpha is read from messages up to this size; a shaper's burst would make larger ones look like less latency."""


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """Fitted link, ns and ns/byte; the estimate first, then resampled values. See PerHop for alpha by size."""

    world_size: int
    alpha_ns: Floats
    beta_ns: Floats

    @property
    def busbw_gbit_s(self) -> Floats:
        """1/beta in Gbit/s, which large messages approach; infinite where beta is not above 0."""
        return np.divide(8, self.beta_ns, out=np.full_like(self.beta_ns, np.inf), where=self.beta_ns > 0)

    def time_ns(self, size: Floats | float) -> Floats:
        """T(m) of an all-reduce."""
        n = self.world_size
        return 2 * (n - 1) * (self.alpha_ns + size * self.beta_ns / n)


def sweep_times(fabric: Frame, world_size: int, collective: str = "all_reduce") -> pl.DataFrame:
    """(launch, round, bytes, time_ns): a message's time from the latest launch to the latest done, mean over a round.

    Messages are those of the first sub-group. Where many were enqueued at once, their time is divided by their number.
    """
    each = _measurements(fabric, world_size, collective)
    return _by_round(each.filter(pl.col("calls") == pl.col("calls").max().over("bytes")))


def host_latency(fabric: Frame, world_size: int) -> pl.DataFrame:
    """(launch, round, time_ns) of an all-reduce: a single message on an idle device less one of many, mean over sizes.

    Empty where many were never enqueued at once.
    """
    each = _measurements(fabric, world_size, "all_reduce")
    single, many = (_by_round(each.filter(chosen)) for chosen in (pl.col("calls") == 1, pl.col("calls") > 1))
    both = single.join(many, on=["launch", "round", "bytes"], suffix="_many")
    longer = (pl.col("time_ns") - pl.col("time_ns_many")).mean()
    return both.group_by("launch", "round").agg(time_ns=longer).sort("launch", "round")


def _measurements(fabric: Frame, world_size: int, collective: str) -> pl.DataFrame:
    """A row for each measurement; `time_ns`: per call."""
    return in_memory(
        fabric.filter(
            (pl.col("world_size") == world_size)
            & (pl.col("rank") < world_size)
            & (pl.col("kind") == KINDS.index(collective))
        )
        .group_by("launch", "round", "block", "step", "seq", "bytes", "calls")
        .agg(time_ns=pl.col("done_ns").max() - pl.col("launch_ns").max(), ranks=pl.len())
        .filter(pl.col("ranks") == world_size)
        .with_columns(time_ns=pl.col("time_ns") / pl.col("calls"))
    )


def _by_round(each: pl.DataFrame) -> pl.DataFrame:
    place = ("launch", "round", "bytes")
    return each.group_by(place).agg(pl.col("time_ns").mean()).sort(place)


Sweep = tuple[Rounds, tuple[int, ...]]
"""Times of one collective, one quantity for each size, and the sizes, bytes."""


def sweep_rounds(times: pl.DataFrame, seed: int) -> Sweep | None:
    """The sweep as rounds with one quantity for each size; None without a sweep."""
    if times.is_empty():
        return None
    wide = times.pivot(on="bytes", index=["launch", "round"], values="time_ns").sort("launch", "round")
    sizes = tuple(sorted(int(name) for name in wide.columns if name.isdigit()))
    values = {str(size): wide[str(size)].cast(pl.Float64).to_numpy() for size in sizes}
    return Rounds(values, wide["launch"].to_numpy(), seed=seed), sizes


def fit(means: Means, sizes: tuple[int, ...], world_size: int) -> AlphaBeta:
    """Fit the line in relative error: beta from sizes of LARGE_BYTES and above, else from the two largest.

    alpha is the mean of T - slope x size over sizes up to SMALL_BYTES (else the smallest), not below 0.
    """
    n = world_size
    if len(sizes) < 2:
        raise UnknownQuantityError("one size cannot tell alpha from beta")
    large = [s for s in sizes if s >= LARGE_BYTES]
    large = large if len(large) > 1 else list(sizes[-2:])
    small = [s for s in sizes if s <= SMALL_BYTES] or list(sizes[:1])
    m = np.array(large, dtype=float)
    t = np.stack([means[str(s)] for s in large], axis=-1)
    w = 1 / t**2
    total, sum_m, sum_t = w.sum(-1), (w * m).sum(-1), (w * t).sum(-1)
    slope = (total * (w * m * t).sum(-1) - sum_m * sum_t) / (total * (w * m * m).sum(-1) - sum_m**2)
    fixed_ns = np.stack([means[str(s)] - slope * s for s in small], axis=-1).mean(axis=-1)
    return AlphaBeta(n, np.maximum(fixed_ns, 0.0) / (2 * (n - 1)), slope * n / (2 * (n - 1)))


def level(
    swept: Mapping[str, Sweep],
    plan: Plan,
    world_size: int,
    clock_bound_ns: int = 0,
    host: pl.DataFrame | None = None,
) -> FabricLevel:
    """One group's curves by collective, and the fit of its all-reduce.

    `clock_bound_ns`: error of corrected clocks. It is the same in every round, so resampling does not show it, and the
    same for every message, so it affects the latency but not the bandwidth that large messages approach. `host`: what
    `host_latency` gives.
    """
    crosses_hosts = plan.spec.topology.hosts_of(world_size) > 1
    nominal = plan.nominal_bit_s(world_size)
    rounds, sizes = swept.get("all_reduce", next(iter(swept.values())))
    fitted = "all_reduce" in swept
    alpha = rounds.measure(lambda m: fit(m, sizes, world_size).alpha_ns / 1e3) if fitted else None
    group = FabricLevel(
        name="network" if crosses_hosts else "host",
        world_size=world_size,
        alpha_us=alpha and alpha.widened(clock_bound_ns / 1e3 / (2 * (world_size - 1))).not_below(0.0),
        busbw_gbit_s=rounds.ratio(lambda m: fit(m, sizes, world_size).busbw_gbit_s) if fitted else None,
        nominal_gbit_s=None if nominal is None else nominal / 1e9,
        curve=tuple(
            _curve_point(collective, size, its_rounds, world_size, clock_bound_ns)
            for collective, (its_rounds, its_sizes) in swept.items()
            for size in its_sizes
        ),
        host_latency_us=None if host is None else _host_latency(host, plan, clock_bound_ns),
        fit_error=_fit_error(rounds.means(), sizes, world_size) if fitted else None,
    )
    # A shaper lets its burst through without delay, so the emulated links have a step that no library makes.
    return group if plan.spec.topology.kind == "emulated" else replace(group, cliffs=cliffs.of_level(group))


def _host_latency(host: pl.DataFrame, plan: Plan, clock_bound_ns: int) -> Measured | None:
    rounds = Rounds({"host": host["time_ns"].to_numpy()}, host["launch"].to_numpy(), seed=plan.spec.seed)
    longer = rounds.measure("host", scale=1e-3)
    return longer and longer.widened(clock_bound_ns / 1e3)


def _fit_error(means: Means, sizes: tuple[int, ...], world_size: int) -> float | None:
    """Median of |T - fitted| / T over the sizes."""
    if len(sizes) < 3:
        return None
    line = fit(means, sizes, world_size)
    off = [abs(float(line.time_ns(size)[0] / means[str(size)][0]) - 1) for size in sizes]
    return float(np.median(off))


def _curve_point(
    collective: str, size: int, rounds: Rounds, world_size: int, clock_bound_ns: int
) -> CurvePoint:
    time_us = rounds.ratio(lambda m: m[str(size)] / 1e3)
    assert time_us is not None
    clock_error_share = clock_bound_ns / 1e3 / time_us.value  # and so of each rate

    def widened(number: Measured | None) -> Measured:
        assert number is not None
        return number.widened(clock_error_share * number.value)

    def bandwidth(scale: float) -> Measured:
        return widened(rounds.ratio(lambda m: size * 8 * scale / m[str(size)]))

    return CurvePoint(
        collective=collective,
        bytes=size,
        time_us=widened(time_us),
        algbw_gbit_s=bandwidth(1.0),
        busbw_gbit_s=bandwidth(bus_factor(world_size, collective)),
    )
