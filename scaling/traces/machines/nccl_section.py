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
ROUNDED = 0.006
"""nccl-tests prints times with three digits or more."""
FALLEN = 0.9
"""A log whose largest message reaches less than this share of its best bandwidth is said to fall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size in one mode, as printed."""

    bytes: int
    count: int
    """Elements: all of them, or one rank's part of a gather, a scatter or an all_to_all."""
    mode: str
    dtype: str
    redop: str | None
    root: int | None
    """None in layouts without these columns."""
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    rounded_gb_s: float
    """Half of the last digit of busbw."""
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
class Launch:
    """What commands, settings and NCCL's own lines tell of how a test was started; None where they do not."""

    processes: int | None = None
    hosts: int | None = None
    per_host: int | None = None
    """Processes on each host."""
    ranks_per_process: int | None = None
    alone: int = 0
    """1 where the test's command stands without a launcher."""
    nccl_ranks: int | None = None
    nccl_hosts: int | None = None

    @property
    def all_processes(self) -> int | None:
        """Processes on all hosts."""
        if self.processes is None and self.hosts and self.per_host:
            return self.hosts * self.per_host
        return self.processes

    @property
    def all_hosts(self) -> int | None:
        """Hosts, also from the processes on each."""
        if self.per_host and self.processes and self.processes % self.per_host == 0:
            return self.processes // self.per_host
        return self.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """T(m) = hops (alpha + m beta / n): alpha from small messages, beta from the best one."""

    mode: str
    alpha_us: float | None
    """None where the log shows no small message."""
    busbw_gbit_s: float
    """1/beta: the best busbw of the log, latency included."""
    at_bytes: int
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
    told_by: str = ""
    """What says the world size apart from the rows' bandwidths."""
    hosts: int | None = None
    """None where nothing tells."""
    hosts_from: str = ""
    launch: Launch = Launch()
    label_hosts: int | None = None
    """Hosts in a line above a table, such as `== 2-node ==`."""
    crosses_hosts: bool = False
    """NCCL's log beside it shows a network between ranks."""
    run: int = 0
    """Tables of one run share it, and its average."""
    devices: list[LoggedDevice] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    average_gb_s: float | None = None
    elided: bool = False
    titled: bool = False
    """It has the title of its columns as a comment, so the average that ends a log is expected too."""

    def of(self, mode: str) -> list[Row]:
        return [r for r in self.rows if r.mode == mode and r.bytes > 0]

    @property
    def wrong(self) -> list[Row]:
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
            off = abs(alg - r.algbw_gb_s) > 1.2 * r.rounded_gb_s + ROUNDED * alg
            if factor is not None:
                bus = factor * r.algbw_gb_s
                off |= abs(bus - r.busbw_gb_s) > 1.2 * (1 + factor) * r.rounded_gb_s + ROUNDED * bus
            if off:
                found.append(r)
        return found

    @property
    def one_rank(self) -> bool:
        """Whether each process was a job of its own: busbw is (n-1)/n of nothing, or rank 0 comes more than once."""
        ranks = [d.rank for d in self.devices]
        none = all(r.busbw_gb_s == 0 for r in self.rows) and any(r.algbw_gb_s >= 0.1 for r in self.rows)
        return none or len(ranks) > len(set(ranks)) == 1

    @property
    def shared_devices(self) -> tuple[tuple[int, ...], ...]:
        """Ranks that use one GPU together; older logs say 0x00 of every GPU."""
        users: dict[tuple[str, str, int], set[int]] = {}
        for d in self.devices:
            if d.bus != "0x00":
                users.setdefault((d.host, d.bus, d.device), set()).add(d.rank)
        return tuple(tuple(sorted(ranks)) for ranks in users.values() if len(ranks) > 1)

    def timed(self, mode: str | None = None) -> list[Timed]:
        """Each size once, in order: the mean of its times in microseconds, and the range that they lie in."""
        times: dict[int, list[float]] = {}
        for r in self.rows:
            if r.bytes > 0 and r.time_us > 0 and mode in (None, r.mode):
                times.setdefault(r.bytes, []).append(r.time_us)
        return [
            Timed(bytes=size, low=min(each), time=sum(each) / len(each), high=max(each))
            for size, each in sorted(times.items())
        ]

    @property
    def cliffs(self) -> tuple[tuple[Cliff, str], ...]:
        """Sizes at which the time falls or jumps, and the mode: `both`, or one where the other does not jump with it.

        Both modes' times are the range in which the time lies. None where the values are wrong.
        """
        if self.wrong:
            return ()
        name = self.collective or "collective"
        found = [(cliff, "both") for cliff in cliffs(self.timed(), name)]
        for mode in MODES:
            found += [
                (c, mode)
                for c in cliffs(self.timed(mode), name)
                if c.kind == "jumps"
                and not any(c.from_bytes <= k.to_bytes and k.from_bytes <= c.to_bytes for k, _ in found)
            ]
        return tuple(sorted(found, key=lambda item: item[0].from_bytes))

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
        beta = each[best] * n / best  # no latency is taken off: what no message reached is not claimed
        large = [m for m in each if m >= LARGE_BYTES] or list(each)[-2:]
        off = [abs(each[m] - (alpha or 0.0) - m * beta / n) / each[m] for m in large]
        return Fit(
            mode=mode,
            alpha_us=alpha,
            busbw_gbit_s=8 / beta / 1e3,
            at_bytes=best,
            fallen=(largest, rate(largest)) if rate(largest) < FALLEN * rate(best) else None,
            residual=float(np.median(off)),
        )
