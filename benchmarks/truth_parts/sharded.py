"""FSDP and HSDP where bytes, links and lateness are known: the runs, their truth and their bars.

ground_truth.py says what the cells are. The model has LAYERS equal layers, each a unit, so arithmetic gives what every
kind of collective sends in a step, of P bytes of parameters, n ranks, s of which share a copy:

    all-gather, forward and again backward: P     reduce-scatter: P     all-reduce over the copies: P / s

and what a rank's link carries of it: (n-1)/n of an all-gather or reduce-scatter among n, 2 (n-1)/n of an all-reduce.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from truth_parts.runs import TCP_SHARE, beyond, floor_of, repeated

LAYERS, COMPUTE_MS, LATE_MS = 2, 40, 30.0
LINKS, SIMULATED = "links", "simulated"
RATES_MBIT = (200, 500, 1000)
RATES_GB_S = (1, 5, 20)
LATE_AT = {LINKS: (500,), SIMULATED: RATES_GB_S}
"""Rates at which a rank is late as well."""
RANKS_PER_HOST = {"fsdp": 1, "hsdp": 2}
PARAM_MB = {
    ("fsdp", 2): (8, 12, 16),
    ("fsdp", 4): (6, 9, 12),
    ("hsdp", 2): (6, 9, 12),
    ("hsdp", 4): (4, 6, 8),
}
"""By strategy and hosts, for each rate: a message has some thirty of the shaper's bursts, which pass it for free."""
BUDGET_S = {("fsdp", 2): 60, ("fsdp", 4): 75, ("hsdp", 2): 60, ("hsdp", 4): 85}
SIMULATED_MB, LATENCY_US, SHARD = 32, 20, 2
RANKS_A_CORE = 2
"""So many still leave each other time: a rank 30 ms late cost 28.7 and 31.8 ms there, and 17.6 with four a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run. `rate`: Mbit/s of an emulated link, GB/s of a simulated accelerator's."""

    where: str
    strategy: str
    hosts: int
    """Emulated hosts; of simulated ranks, which are on one host, their number."""
    rate: int
    late_ms: float = 0.0

    @property
    def name(self) -> str:
        """The folder of its run."""
        late = f"late{self.late_ms:g}" if self.late_ms else "clean"
        return f"{self.where}-{self.strategy}-{self.hosts}-{self.rate}-{late}"

    @property
    def ranks(self) -> int:
        """World size."""
        return self.hosts * RANKS_PER_HOST[self.strategy] if self.where == LINKS else self.hosts

    @property
    def shard(self) -> int:
        """Ranks that share a copy."""
        if self.strategy == "fsdp":
            return self.ranks
        return RANKS_PER_HOST["hsdp"] if self.where == LINKS else SHARD

    @property
    def param_mb(self) -> int:
        """MiB of parameters."""
        if self.where == SIMULATED:
            return SIMULATED_MB
        return PARAM_MB[self.strategy, self.hosts][RATES_MBIT.index(self.rate)]

    @property
    def overrides(self) -> list[str]:
        """Of `scaling run`."""
        common = [
            f"parallel={self.strategy}",
            "model=synthetic",
            f"model.param_mb={self.param_mb}",
            f"model.layers={LAYERS}",
            f"model.compute_ms={COMPUTE_MS}",
            f"world_sizes=[{self.ranks}]",
            "measure=quick",
            "tracking=disabled",
        ]
        if self.late_ms:
            common += ["inject.rank=1", f"inject.compute_ms={self.late_ms}"]
        if self.where == LINKS:
            return [
                *common,
                "topology=emulated_pcie",
                f"topology.hosts={self.hosts}",
                f"topology.ranks_per_host={RANKS_PER_HOST[self.strategy]}",
                f"topology.link.rate={self.rate}mbit",
                f"measure.budget_s={BUDGET_S[self.strategy, self.hosts]}",
                "measure.rounds_max=6",
            ]
        return [
            *common,
            *([f"parallel.shard={SHARD}"] if self.strategy == "hsdp" else []),
            "topology=local",
            "topology.device=sim",
            f"topology.ranks_per_host={self.ranks}",
            f"topology.simulated.link_us={LATENCY_US}",
            f"topology.simulated.link_gb_s={self.rate}",
            "measure.budget_s=300",
            "measure.rounds_max=3",
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a step sends of one kind."""

    kind: str
    phase: str
    axis: str
    bytes: int
    transfer_ms: float | None
    """None: its link has no known rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run against its truth."""

    cell: Cell
    contended: int
    bytes_off: int
    """Kinds whose bytes are not those of arithmetic, or that are there and should not be, or the other way round."""
    errors: dict[str, float]
    """Of the transfer, by kind and phase."""
    cost_ms: float | None
    truth_ms: float | None
    """What the late rank costs: what it is late, or how much longer the step takes with it. None: not known."""
    room_ms: float
    """How well the cost and the truth are known together: 95 % of what lies between them by chance."""
    named: bool
    closure: float | None
    unexplained: float | None
    floor: float


def cells(where: Iterable[str] = (LINKS, SIMULATED)) -> list[Cell]:
    """The grid: strategies x hosts x rates, and a late rank at some of the rates."""
    grid = []
    for place in where:
        rates = RATES_MBIT if place == LINKS else RATES_GB_S
        for strategy in ("fsdp", "hsdp"):
            for hosts in (2, 4):
                if place == SIMULATED and strategy == "hsdp" and hosts == SHARD:
                    continue  # one copy alone
                for rate in rates:
                    grid.append(Cell(where=place, strategy=strategy, hosts=hosts, rate=rate))
                    if rate in LATE_AT[place]:
                        grid.append(
                            Cell(where=place, strategy=strategy, hosts=hosts, rate=rate, late_ms=LATE_MS)
                        )
    return grid


def expected(cell: Cell) -> list[Expected]:
    """What a step of a cell sends, by kind."""
    whole, s = cell.param_mb * 2**20, cell.shard
    copies = cell.ranks // s
    links = cell.where == LINKS
    across = cell.strategy == "fsdp"  # within a host nothing is shaped
    kinds = [("all_gather", "forward"), ("all_gather", "backward"), ("reduce_scatter", "backward")]
    ring = (s - 1) / s * whole
    timed = across or not links
    sends = [
        Expected(
            kind=kind,
            phase=phase,
            axis="shard",
            bytes=whole,
            transfer_ms=_transfer_ms(cell, ring) if timed else None,
        )
        for kind, phase in kinds
    ]
    if copies > 1:
        mine = 2 * (copies - 1) / copies * whole / s
        sends.append(
            Expected(
                kind="all_reduce",
                phase="backward",
                axis="replicate",
                bytes=whole // s,
                transfer_ms=_transfer_ms(cell, mine * (s if links else 1)),  # all of a host's ranks at once
            )
        )
    return sends


def _transfer_ms(cell: Cell, moved: float) -> float:
    """Of a step's LAYERS messages, of which a link carries so many bytes."""
    if cell.where == LINKS:
        return moved * 8e3 / (cell.rate * 1e6 * TCP_SHARE)
    return LAYERS * LATENCY_US / 1e3 + moved / (cell.rate * 1e6)


def shares_cores(cell: Cell) -> bool:
    """Whether a late rank's peers use the core that it leaves free: it then costs less than it is late."""
    return cell.where == LINKS and cell.ranks > RANKS_A_CORE * len(os.sched_getaffinity(0))


def longer(late: dict[str, Any], clean: dict[str, Any]) -> tuple[float, float]:
    """How much longer a step takes with the late rank than without, ms, and the half-width of the difference."""
    return late["value"] - clean["value"], math.hypot(_half(late), _half(clean))


def _half(measured: dict[str, Any]) -> float:
    """Half of an interval; unlimited where there is none."""
    return math.inf if measured["low"] is None else (measured["high"] - measured["low"]) / 2


def judge(cell: Cell, point: dict[str, Any], contended: int, clean: dict[str, Any] | None = None) -> Row:
    """A run's point against what its cell says. `clean`: the step of the same cell without the late rank."""
    collectives = {(c["kind"], c["phase"], c["communicator"]): c for c in point["comm"]["collectives"]}
    wanted = {(e.kind, e.phase, e.axis): e for e in expected(cell)}
    off = sum(key not in wanted for key in collectives)
    off += sum(key not in collectives or collectives[key]["bytes"] != e.bytes for key, e in wanted.items())
    errors = {
        f"{e.kind} {e.phase}": collectives[key]["transfer_ms"]["value"] / e.transfer_ms - 1
        for key, e in wanted.items()
        if e.transfer_ms is not None and key in collectives
    }
    late = point["straggler"]
    named = bool(late and late["rank"] == 1 and late["phase"] == "forward") if cell.late_ms else late is None
    unexplained = point["loss"]["unexplained"]
    truth_ms, room_ms = (cell.late_ms, 0.0) if cell.late_ms and not shares_cores(cell) else (None, 0.0)
    if cell.late_ms and truth_ms is None and clean is not None:
        truth_ms, room_ms = longer(point["step_ms"], clean)
        room_ms = math.hypot(room_ms, _half(late["cost_ms"]) if late else 0.0)
    return Row(
        cell=cell,
        contended=contended,
        bytes_off=off,
        errors=errors,
        cost_ms=(late["cost_ms"]["value"] if late else 0.0) if cell.late_ms else None,
        truth_ms=truth_ms,
        room_ms=room_ms,
        named=named,
        closure=point["closure"] and point["closure"]["value"] - 1,
        unexplained=unexplained and unexplained["value"],
        floor=floor_of(point),
    )


HEAD = (
    f"{'where':<10} {'parallel':<8} {'ranks':>5} {'rate':>9} {'late':>5} {'bytes':>6} {'cost/true ms':>12} "
    f"{'named':>6} {'closure':>8} {'unexpl.':>8} {'A/A':>6} {'again':>6}  transfer by kind"
)


def line(row: Row) -> str:
    """A row of the table."""
    cell = row.cell
    rate = f"{cell.rate} {'Mbit' if cell.where == LINKS else 'GB/s'}"
    numbers = [
        "-" if value is None else f"{value:+.1%}" for value in (row.closure, row.unexplained, row.floor)
    ]
    cost = "-" if row.cost_ms is None else f"{row.cost_ms:.1f}"
    if row.truth_ms is not None:
        cost += f"/{row.truth_ms:.1f}"
    kinds = ", ".join(f"{name} {error:+.1%}" for name, error in row.errors.items())
    return (
        f"{cell.where:<10} {cell.strategy:<8} {cell.ranks:>5} {rate:>9} {cell.late_ms or '-':>5} "
        f"{'off' if row.bytes_off else 'exact':>6} {cost:>12} {row.named!s:>6} {numbers[0]:>8} {numbers[1]:>8} "
        f"{numbers[2]:>6} {repeated(row.contended):>6}  {kinds}"
    )


def bars(rows: Sequence[Row]) -> dict[str, tuple[float, float, bool]]:
    """Name -> (measured, bar, met), for each place that has rows."""
    figures: dict[str, tuple[float, float]] = {}
    for place in dict.fromkeys(row.cell.where for row in rows):
        some = [row for row in rows if row.cell.where == place]
        late = [row for row in some if row.cost_ms is not None and row.truth_ms is not None]
        costs = [row.cost_ms / row.truth_ms - 1 for row in late if not shares_cores(row.cell)]
        shared = [
            max(0.0, abs(row.cost_ms - row.truth_ms) - row.room_ms) / row.cell.late_ms
            for row in late
            if shares_cores(row.cell) and row.room_ms < row.cell.late_ms  # else the pair says nothing
        ]
        closing = [1.0 if row.closure is None else beyond(row.closure, row.floor) for row in some]
        label = f"sharded, {place}"
        figures[f"{label}: bytes of a kind are not arithmetic's"] = (
            sum(row.bytes_off > 0 for row in some) / len(some),
            0.0,
        )
        for kind in dict.fromkeys(kind for row in some for kind in row.errors):
            errors = [row.errors[kind] for row in some if kind in row.errors]
            figures[f"{label}: {kind}, pooled bias"] = (abs(sum(errors) / len(errors)), 0.03)
        if costs:
            figures[f"{label}: late rank's cost, pooled bias"] = (abs(sum(costs) / len(costs)), 0.05)
        if shared:
            figures[f"{label}: its cost beyond the pair's interval, worst"] = (max(shared), 0.05)
        figures[f"{label}: late rank not named, or one named"] = (
            sum(not row.named for row in some) / len(some),
            0.0,
        )
        figures[f"{label}: closure beyond 3 % and the A/A floor, worst"] = (max(closing), 0.0)
    return {name: (value, bar, value <= bar) for name, (value, bar) in figures.items()}
