"""One table of a log of nccl-tests: its rows, what they show without saying it, and the fit to them.

What they show: the collective, the ranks and the hosts, each with where it comes from; and a wrong start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scaling.analysis.network import links
from scaling.analysis.network.cliffs import Timed, cliffs
from scaling.analysis.network.curve import LARGE_BYTES, SMALL_BYTES
from scaling.analysis.network.links import SHARED
from scaling.analysis.network.nccl_log import Cards
from scaling.analysis.results import Cliff
from scaling.traces.profiler.signs import element_bytes

MODES = ("out-of-place", "in-place")
ROUNDED = 0.006
"""nccl-tests prints times with three digits or more."""
FALLEN = 0.9
"""A log whose largest message reaches less than this share of its best bandwidth is said to fall."""
TELLING_BYTES = 1 << 20
"""Rows from this size on show the factor of their collective; smaller ones have too few digits."""
ONE_HOST_MAX = 8
"""So many ranks are taken for one host where nothing tells how many hosts there were."""
NODES = re.compile(r"(?<![0-9])([1-9]\d{0,4})[_ -]?(?:nodes?|hosts?)(?![a-z])", re.IGNORECASE)
_IN_NAME = re.compile(
    "(all)_?(reduce|gather|to_?all)|(reduce)_?(scatter)|(broadcast)|(send)_?(recv)", re.IGNORECASE
)


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

    @property
    def parts(self) -> int | None:
        """How many times the count column goes into the size: the ranks, for collectives that count a rank's part."""
        unit = self.count * (element_bytes(self.dtype) or 0)
        return None if not unit or self.bytes % unit else self.bytes // unit


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
class LogTable:
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
    launch: dict[str, int] = field(default_factory=dict)
    """From commands, settings and NCCL's own lines: processes, hosts, processes and `cards` on each (`per_host`),
    `ranks_per_process`, `nccl_ranks`, `nccl_hosts`; `alone`: 1 where the command stands without a launcher."""
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
    cut: list[str] = field(default_factory=list)
    """What is missing of rows that are not whole."""
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

        def contradicts(r: Row) -> bool:
            algbw = r.bytes / r.time_us / 1e3
            if abs(algbw - r.algbw_gb_s) > 1.2 * r.rounded_gb_s + ROUNDED * algbw:
                return True
            busbw = (factor or 0.0) * r.algbw_gb_s
            near = 1.2 * (1 + (factor or 0.0)) * r.rounded_gb_s + ROUNDED * busbw
            return factor is not None and abs(busbw - r.busbw_gb_s) > near

        return [r for r in self.rows if r.bytes > 0 and r.time_us > 0 and contradicts(r)]

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

    @property
    def mistakes(self) -> list[str]:
        """What the log shows of how the test was started wrongly, with the remedy."""
        alone = (
            "every process ran alone, with one rank, so nothing crossed a link: build nccl-tests with MPI=1 and start "
            "it with mpirun, or with srun --mpi=pmix; or let one process take N GPUs with -g N"
        )
        return [alone] * self.one_rank + [
            f"ranks {', '.join(map(str, ranks))} use one GPU, so this is no bandwidth of a link: give each process a "
            "GPU of its own (srun --ntasks-per-node=N --gpus-per-node=N, no CUDA_VISIBLE_DEVICES that is the same for "
            "all)"
            for ranks in self.shared_devices
        ]

    def beside(self, causes: Sequence[str], cards: Cards | None) -> str | None:
        """The best row beside what others reach on such a machine; None where the table has none, or the log misleads.

        `causes` and `cards`: what NCCL's lines say of slow ways and of each host's network cards.
        """
        n, hosts, collective = self.world_size, self.hosts, self.collective
        names = {d.name for d in self.devices}
        if n is None or hosts is None or collective is None or len(names) != 1 or self.wrong or self.mistakes:
            return None
        points = ((collective, n, hosts, r.bytes, r.busbw_gb_s) for r in self.rows)
        if cards is None and "cards" in self.launch:
            cards = Cards(self.launch["cards"], None)
        return next(iter(links.beside_best(names.pop(), points, causes, cards)), None)

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
        both = [(cliff, "both") for cliff in cliffs(self.timed(), name)]
        for mode in MODES:
            both += [
                (c, mode)
                for c in cliffs(self.timed(mode), name)
                if c.kind == "jumps"
                and not any(c.from_bytes <= k.to_bytes and k.from_bytes <= c.to_bytes for k, _ in both)
            ]
        return tuple(sorted(both, key=lambda item: item[0].from_bytes))

    def fitted(self, mode: str) -> Fit | None:
        """alpha and beta; None where too few sizes, the ranks or the collective are known."""
        n, rows = self.world_size, {r.bytes: r.time_us for r in self.of(mode) if r.time_us > 0}
        if n is None or n < 2 or len(rows) < 3 or self.collective not in SHARED or self.wrong:
            return None
        hops = SHARED[self.collective] * (n - 1)
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

    def complete(self, where: str) -> None:
        """Find the collective, the world size and the hosts from all that the table and the file's name tell."""
        name = Path(where).name
        self.world_size, self.world_from = _ranks_told(self)
        self.told_by = self.world_from
        if self.collective is None:
            self.collective, self.how = _collective(self, name)
        shared = SHARED.get(self.collective or "")
        bounds = None if shared is None else _bounds(self.rows, shared)
        n = self.world_size
        if self.one_rank:
            self.world_size, self.world_from = 1, "busbw 0.00, or rank 0 more than once"
        elif bounds is not None and (n is None or not bounds[0] <= n <= bounds[1]):
            self.world_size, self.world_from = _ranks(bounds, self.launch.get("ranks_per_process", 1))
            if n is not None:
                verb = "show" if "lines" in self.told_by else "shows"
                self.world_from += f"; {self.told_by} {verb} {n}, which contradicts it"
        self.hosts, self.hosts_from = _hosts(self, name)


def _ranks_told(table: LogTable) -> tuple[int | None, str]:
    """The world size from what says it, the surest first, and what says it."""
    launch, listed = table.launch, {d.rank for d in table.devices}
    each, hosts, per_host = launch.get("ranks_per_process", 1), launch.get("hosts"), launch.get("per_host")
    counts = {r.parts for r in table.rows if r.bytes >= TELLING_BYTES} or {None}
    counted = counts.pop() if len(counts) == 1 else None
    processes = launch.get("processes") or (hosts * per_host if hosts and per_host else None)
    told: list[tuple[int | None, str]] = [(counted if counted and counted > 1 else None, "its count column")]
    if listed:  # the middle of a long list is often left out, and -J lists a process by its first device
        told.append((max(len(listed), (max(listed) // each + 1) * each), "its device lines"))
    told.append((launch.get("nccl_ranks"), "NCCL's log"))
    if processes is not None:
        told.append((processes * each, "its command"))
    elif launch.get("alone") and each > 1:
        told.append((each, "its command, taken for the only process"))
    return next(((n, how) for n, how in told if n is not None), (None, ""))


def _collective(table: LogTable, name: str) -> tuple[str | None, str]:
    """The collective by the file's name or the shape of the rows, where these leave one."""
    possible, named = _possible(table), _IN_NAME.search(name)
    words = [word.lower() for word in named.groups() if word] if named else []
    from_name = "_".join(words).replace("toall", "to_all")
    if from_name in possible:
        return from_name, "the file's name"
    return (possible.pop(), "its redop, root, count and busbw / algbw") if len(possible) == 1 else (None, "")


def _possible(table: LogTable) -> set[str]:
    """Collectives that print such rows: by what they reduce, their root, their count, and busbw / algbw."""
    first, large = table.rows[0], [r for r in table.rows if r.bytes >= TELLING_BYTES]
    ratios = [r.busbw_gb_s / r.algbw_gb_s for r in large if r.algbw_gb_s >= 0.2]
    ratio, n = float(np.median(ratios)) if ratios else None, table.world_size
    if ratio is not None and ratio > 1.01 and first.redop != "none":
        return {"all_reduce"}  # 2 (n-1)/n is above 1 only for it
    parts = any((r.parts or 1) > 1 for r in large)
    if first.root is not None and first.root >= 0:
        if parts:
            return {"gather", "scatter"}
        # Older ones print `sum` for both.
        return {"broadcast"} if first.redop == "none" else {"broadcast", "reduce"}
    if parts:
        return {"all_gather" if first.redop == "none" else "reduce_scatter", "all_to_all"}
    if first.redop == "none":
        return {"all_gather", "all_to_all", "send_recv", "broadcast"}
    if n is not None and n > 1 and ratio is not None and abs(ratio - 2 * (n - 1) / n) < 0.01:
        return {"all_reduce"}
    return {*SHARED, "send_recv", "broadcast", "reduce"}


def _bounds(rows: Sequence[Row], factor: float) -> tuple[int, int] | None:
    """World sizes that busbw / algbw = factor (n-1)/n allows, as far as their digits let it be known."""
    low, high = 0.0, 1.0
    for r in rows:
        if r.bytes < TELLING_BYTES or r.busbw_gb_s < 10 * r.rounded_gb_s or r.time_us <= 0:
            continue
        algbw = r.bytes / r.time_us / 1e3  # with more digits than are printed
        if abs(algbw - r.algbw_gb_s) > 2 * r.rounded_gb_s + 0.002 * algbw:
            continue
        low = max(low, (r.busbw_gb_s - r.rounded_gb_s) / (algbw * 1.0005) / factor)
        high = min(high, (r.busbw_gb_s + r.rounded_gb_s) / (algbw * 0.9995) / factor)
    if not 0.4 < low < high < 0.99999:
        return None
    return math.ceil(1 / (1 - low) - 1e-9), math.floor(1 / (1 - high) + 1e-9)


def _ranks(bounds: tuple[int, int], multiple: int) -> tuple[int | None, str]:
    """The world size within the bounds that is the only one, the only multiple of a process's, or the power of two."""
    least, most = bounds
    if least == most:
        return least, "busbw / algbw"
    rounded = f"busbw / algbw, which are rounded: {least} to {most}"
    whole = [n for n in range(max(least, 2), most + 1) if n % multiple == 0] if most < 10**6 else []
    if multiple > 1 and len(whole) == 1:
        return whole[0], f"{rounded}, of which one is a multiple of {multiple} ranks a process"
    powers = [n for n in whole if n & (n - 1) == 0]
    if len(powers) == 1:
        return powers[0], f"{rounded}, of which one is a power of two"
    return None, rounded


def _hosts(table: LogTable, name: str) -> tuple[int | None, str]:
    """Number of hosts; None where nothing tells it, or where it does not divide the ranks."""
    n, launch, in_name = table.world_size, table.launch, NODES.search(name)
    listed = {d.rank: d for d in table.devices}
    seen = len({d.host for d in listed.values()})
    whole = n is not None and 0 < n <= len(listed) * launch.get("ranks_per_process", 1)
    processes, per_host, filled = launch.get("processes"), launch.get("per_host"), launch.get("hosts")
    if processes and per_host and processes % per_host == 0:
        filled = processes // per_host
    told: list[tuple[int | None, str]] = [
        (seen if whole else None, "its device lines"),
        (launch.get("nccl_hosts"), "NCCL's log"),
        (filled, "its command"),
        (table.label_hosts, "the line above it"),
        (int(in_name[1]) if in_name else None, "the file's name"),
    ]
    last = listed[max(listed)] if listed else None
    if last is not None and last.device > 0 and n == last.rank + 1:
        told.append((n // (last.device + 1), f"rank {last.rank} is device {last.device} of its host"))
    elif n is not None and n <= ONE_HOST_MAX and not table.crosses_hosts and seen < 2:
        alone = launch.get("alone") and table.told_by.startswith("its command")
        told.append((1, "its command" if alone else "assumed: the log lists no devices"))
    hosts, how = next(((h, how) for h, how in told if h is not None), (None, ""))
    if hosts is None or n is None or n % hosts or hosts < seen:
        return None, ""
    return hosts, how
