"""One table of a log of nccl-tests: its rows, and the latency and bandwidth that they show."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scaling.analysis.network.cliffs import Timed, cliffs
from scaling.analysis.network.curve import LARGE_BYTES, SMALL_BYTES
from scaling.analysis.results import Cliff

MODES = ("out-of-place", "in-place")
FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""busbw / algbw over (n-1)/n (nccl-tests, doc/PERFORMANCE.md)."""
ROUNDED_GB_S, ROUNDED = 0.006, 0.006
"""nccl-tests prints bandwidths to 0.01 GB/s, and times with three digits or more."""
FALLEN = 0.9
"""A log whose largest message reaches less than this share of its best bandwidth is said to fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size in one mode, as printed: nccl-tests rounds bandwidths to 0.01 GB/s."""

    bytes: int
    mode: str
    dtype: str
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    wrong: int | None
    """Number of wrong values; None where they were not checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedDevice:
    """A line under `Using devices`."""

    rank: int
    host: str
    device: int
    bus: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """T(m) = hops (alpha + m beta / n): alpha from the smallest messages, beta from the one with the best bandwidth."""

    mode: str
    alpha_us: float | None
    """None where the log shows no small message."""
    busbw_gbit_s: float
    """1/beta: what the message of `at_bytes` reached, less its latency."""
    at_bytes: int
    reached_gbit_s: float
    """busbw of that message, latency included."""
    fallen: tuple[int, float] | None
    """(bytes, busbw in Gbit/s) of the largest message where it is clearly slower than the best."""
    residual: float
    """Median of |T - fitted| / T over messages of 256 KiB or more."""


@dataclass(slots=True, kw_only=True)
class Section:
    """One collective's table."""

    collective: str | None = None
    how: str = ""
    """Where the collective's name comes from."""
    world_size: int | None = None
    world_from: str = ""
    hosts: int | None = None
    """None where neither devices nor the file's name tell."""
    hosts_from: str = ""
    devices: list[LoggedDevice] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    average_gb_s: float | None = None
    elided: bool = False
    titled: bool = False
    """It has the title of its columns as a comment, so the average that ends a log is expected too."""

    def of(self, mode: str) -> list[Row]:
        """Rows of one mode with bytes in them."""
        return [r for r in self.rows if r.mode == mode and r.bytes > 0]

    @property
    def wrong(self) -> list[Row]:
        """Rows with wrong values."""
        return [r for r in self.rows if r.wrong]

    @property
    def contradicting(self) -> list[Row]:
        """Rows whose algbw is not their size over their time, or whose busbw is not the table's factor times that."""
        large = [r for r in self.rows if r.algbw_gb_s >= 1]
        factor = float(np.median([r.busbw_gb_s / r.algbw_gb_s for r in large])) if large else None
        found = []
        for r in self.rows:
            if r.bytes <= 0 or r.time_us <= 0:
                continue
            alg = r.bytes / r.time_us / 1e3
            off = abs(alg - r.algbw_gb_s) > ROUNDED_GB_S + ROUNDED * alg
            if factor is not None:
                bus = factor * r.algbw_gb_s
                off |= abs(bus - r.busbw_gb_s) > (1 + factor) * ROUNDED_GB_S + ROUNDED * bus
            if off:
                found.append(r)
        return found

    def timed(self) -> list[Timed]:
        """Each size once, in order: the mean of all its times in microseconds, and the range that they lie in."""
        times: dict[int, list[float]] = {}
        for r in self.rows:
            if r.bytes > 0 and r.time_us > 0:
                times.setdefault(r.bytes, []).append(r.time_us)
        return [
            Timed(bytes=size, low=min(each), time=sum(each) / len(each), high=max(each))
            for size, each in sorted(times.items())
        ]

    @property
    def cliffs(self) -> tuple[Cliff, ...]:
        """Sizes at which the time falls or jumps, as of one's own curve; none where the values are wrong."""
        return () if self.wrong else cliffs(self.timed(), self.collective or "collective")

    @property
    def own_average_gb_s(self) -> float | None:
        """Mean of all busbw, as nccl-tests computes it."""
        return sum(r.busbw_gb_s for r in self.rows) / len(self.rows) if self.rows else None

    def fitted(self, mode: str) -> Fit | None:
        """alpha and beta; None where too few sizes, the ranks or the collective are known."""
        n, rows = self.world_size, {r.bytes: r.time_us for r in self.of(mode) if r.time_us > 0}
        if n is None or n < 2 or len(rows) < 3 or self.collective not in FACTORS or self.wrong:
            return None
        hops = FACTORS[self.collective] * (n - 1)
        each = {m: t / hops for m, t in sorted(rows.items())}
        small = [t for m, t in each.items() if m <= SMALL_BYTES]
        alpha = float(np.median(small)) if small else None

        def rate(m: int) -> float:  # Gbit/s
            return m * 8 / n / each[m] / 1e3

        best, largest = max(each, key=rate), max(each)
        beta = max(each[best] - (alpha or 0.0), 0.0) * n / best
        if not beta:
            return None
        large = [m for m in each if m >= LARGE_BYTES] or list(each)[-2:]
        off = [abs(each[m] - (alpha or 0.0) - m * beta / n) / each[m] for m in large]
        return Fit(
            mode=mode,
            alpha_us=alpha,
            busbw_gbit_s=8 / beta / 1e3,
            at_bytes=best,
            reached_gbit_s=rate(best),
            fallen=(largest, rate(largest)) if rate(largest) < FALLEN * rate(best) else None,
            residual=float(np.median(off)),
        )
