"""DDP over links of known speed: the runs, their truth and their bars. ground_truth.py says what they are."""

from __future__ import annotations

import importlib.util
import math
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truth_parts.plain import Busy, busy_of
from truth_parts.runs import TCP_SHARE, beyond, floor_of, holds, repeated

from scaling import resources

RATES_MBIT = (100, 200, 500, 1000)
FAULTS: tuple[tuple[str, float], ...] = (
    ("clean", 0.0),
    ("compute", 20.0),
    ("compute", 50.0),
    ("compute", 100.0),
    ("input", 30.0),
)
COMPUTE_MS = 40
PARAM_MB = {100: 2, 200: 4, 500: 8, 1000: 16}
MLP_WIDTH = {100: 320, 200: 460, 500: 660}
BUDGET_S = {2: 24, 4: 42}
"""Budget by number of hosts, enough for at least three rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A run's time on the links against a plain loop's."""

    error: float
    """Of the run."""
    over_ideal: float
    """Of the loop, over bytes / rate."""
    equal: bool
    """Whether the interval of their difference holds nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run against its truth; None where it does not apply."""

    contended: int
    """Contended runs before this one; TRIES: this one was contended too."""
    model: str
    rate_mbit: int
    hosts: int
    fault: str
    transfer_error: float
    """Compared with bytes / rate."""
    bare_held: bool
    busbw_gbit_s: dict[str, float]
    buckets: list[tuple[float, float]]
    """(ready, transfer) of each bucket, ms, in order."""
    bucket_bytes: list[int]
    late_ms: float
    step_ms: float
    alpha_us: float
    cost_ms: float | None
    cost_error: float | None
    named: bool | None
    closure: float
    unexplained: float
    floor: float
    aa_held: bool
    """Whether the A/A interval contains 1."""
    loop: Beside | None = None
    """None: no plain loop was run beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A row, and whether the interval of its bandwidth contains that of the link."""

    row: Row
    link_error: float
    held: bool


def overrides(model: str, rate: int, hosts: int, fault: str, stall_ms: float) -> list[str]:
    size = (
        [f"model.param_mb={PARAM_MB[rate]}", f"model.compute_ms={COMPUTE_MS}"]
        if model == "synthetic"
        else [f"model.width={MLP_WIDTH[rate]}", "batch_per_rank=256"]
    )
    stall = [] if fault == "clean" else ["inject.rank=1", f"inject.{fault}_ms={stall_ms}"]
    return [
        "topology=emulated_pcie",
        f"topology.hosts={hosts}",
        f"topology.link.rate={rate}mbit",
        f"world_sizes=[{hosts}]",
        f"model={model}",
        *size,
        "measure=quick",
        f"measure.budget_s={BUDGET_S[hosts]}",
        "measure.rounds_max=8",
        "tracking=disabled",
        *stall,
    ]


def judge(
    level: dict[str, Any],
    point: dict[str, Any],
    contended: int,
    model: str,
    rate: int,
    hosts: int,
    fault: str,
    stall_ms: float,
) -> Row:
    busbw, truth = point["comm"]["busbw_gbit_s"], rate / 1e3 * TCP_SHARE
    late, same = point["straggler"], point["overhead"]["aa_floor"]
    cost = None if fault == "clean" else (late["cost_ms"]["value"] if late else 0.0)
    phase = {"compute": "forward", "input": "input"}.get(fault)
    named = (
        (late is None) if fault == "clean" else bool(late and late["rank"] == 1 and late["phase"] == phase)
    )
    return Row(
        contended=contended,
        model=model,
        rate_mbit=rate,
        hosts=hosts,
        fault=fault if fault == "clean" else f"{fault} {stall_ms:g} ms",
        transfer_error=truth / busbw["value"] - 1,  # time is inversely proportional to bandwidth
        bare_held=holds(busbw, truth),
        busbw_gbit_s=busbw,
        buckets=[
            (b["ready_ms"]["value"] + b["skew_ms"]["value"], b["transfer_ms"]["value"])
            for b in point["comm"]["buckets"]
        ],
        bucket_bytes=[b["bytes"] for b in point["comm"]["buckets"]],
        late_ms=stall_ms,
        step_ms=point["step_ms"]["value"],
        alpha_us=level["alpha_us"]["value"],
        cost_ms=cost,
        cost_error=None if cost is None else cost / stall_ms - 1,
        named=named,
        closure=point["closure"]["value"] - 1,
        unexplained=point["loss"]["unexplained"]["value"],
        floor=floor_of(point),
        aa_held=holds(same, 1.0),
    )


def beside(row: Row, folder: Path) -> Beside:
    """What a plain loop sees of the same buckets; it is measured once and kept in `folder`."""
    loop = busy_of(
        folder,
        buckets=row.bucket_bytes,
        compute_ms=COMPUTE_MS,
        late_ms=row.late_ms,
        hosts=row.hosts,
        rate=f"{row.rate_mbit}mbit",
    )
    busy_ms, busbw = sum(transfer for _, transfer in row.buckets), row.busbw_gbit_s
    half_ms = busy_ms * (busbw["high"] - busbw["low"]) / 2 / busbw["value"]
    ours = Busy(mean_ms=busy_ms, half_ms=half_ms)
    ideal_ms = busy_ms / (1 + row.transfer_error)
    return Beside(error=ours.apart(loop), over_ideal=loop.mean_ms / ideal_ms - 1, equal=ours.same(loop))


def judged(rows: list[Row]) -> list[Judged]:
    """Every row compared with the whole link."""
    alpha_ms = {
        hosts: statistics.median(r.alpha_us for r in rows if r.hosts == hosts) / 1e3
        for hosts in {r.hosts for r in rows}
    }
    judgements = []
    for row in rows:
        rate = row.rate_mbit * 1e6
        burst_ms = burst_bytes(rate) * 8e3 / rate
        busy_ms = sum(transfer for _, transfer in row.buckets)
        bare_ms = busy_ms / (1 + row.transfer_error)
        idle = idle_before(row.buckets, row.step_ms)
        free_ms = sum(min(burst_ms, gap) for gap in idle)
        latency_ms = len(idle) * 2 * alpha_ms[row.hosts]  # Gloo's ring drains twice
        error = busy_ms / (bare_ms - free_ms + latency_ms) - 1
        truth = row.busbw_gbit_s["value"] * (1 + error)
        judgements.append(Judged(row=row, link_error=error, held=holds(row.busbw_gbit_s, truth)))
    return judgements


def idle_before(buckets: list[tuple[float, float]], step_ms: float) -> list[float]:
    """How long the link had been idle before each of its busy periods of a step, ms."""
    starts, end = [], -math.inf
    for ready, transfer in buckets:
        if ready > end:
            starts.append((ready, end))
        end = max(end, ready) + transfer
    first = starts[0][0] + step_ms - end
    return [first, *(begin - before for begin, before in starts[1:])]


def burst_bytes(rate_bit_s: float) -> int:
    """The burst of the traffic shaper, from the script that sets it."""
    path = resources.folder("launch") / "emulated_hosts.py"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(path.stem, path))
    sys.modules[path.stem] = module
    module.__spec__.loader.exec_module(module)
    return module.burst_bytes(rate_bit_s)


def cells(which: str) -> list[tuple[str, int, int, str, float]]:
    grid = [("synthetic", rate, hosts, *fault) for rate in RATES_MBIT for hosts in (2, 4) for fault in FAULTS]
    grid += [("mlp", rate, 2, *fault) for rate in RATES_MBIT[:3] for fault in FAULTS]
    clean, middle, stall = FAULTS[0], FAULTS[2], FAULTS[4]
    if which == "quick":
        return [c for c in grid if c[1] in (200, 1000) and c[3:] in (clean, middle)]
    if which == "most":
        few = {("synthetic", 4): (clean, middle), ("mlp", 2): (clean, middle, stall)}
        return [c for c in grid if c[3:] in few.get((c[0], c[2]), FAULTS)]
    return grid


def bars(rows: list[Row], links: list[Judged]) -> dict[str, tuple[float, float, bool]]:
    """Name -> (measured, bar, met)."""
    transfer = [row.transfer_error for row in rows]
    costs = [row.cost_error for row in rows if row.cost_error is not None]
    clean = {(r.model, r.rate_mbit, r.hosts): r.transfer_error for r in rows if r.fault == "clean"}
    moved = [
        abs((1 + r.transfer_error) / (1 + clean[r.model, r.rate_mbit, r.hosts]) - 1)
        for r in rows
        if r.fault != "clean"
    ]
    closing = [beyond(value, row.floor) for row in rows for value in (row.closure, row.unexplained)]
    figures = {
        "transfer, pooled bias": (abs(sum(transfer) / len(transfer)), 0.03),
        "transfer, worst": (max(map(abs, transfer)), 0.05),
        "transfer, missed by its interval": (sum(not item.held for item in links) / len(rows), 0.10),
        "A/A ratio, 1 missed by its interval": (sum(not r.aa_held for r in rows) / len(rows), 0.10),
        "straggler cost, pooled bias": (abs(sum(costs) / len(costs)), 0.05),
        "straggler not named, or named on a clean run": (sum(not r.named for r in rows) / len(rows), 0.0),
        "bandwidth moved by a straggler, worst": (max(moved), 0.05),
        "closure and unexplained beyond 3 % and the A/A floor, worst": (max(closing), 0.0),
    }
    loops = [row.loop for row in rows if row.loop]
    if loops:
        figures |= {
            "transfer against a plain loop, worst": (max(abs(loop.error) for loop in loops), 0.03),
            "transfer against a plain loop, not equal by the interval": (
                sum(not loop.equal for loop in loops) / len(loops),
                0.10,
            ),
        }
    return {name: (value, bar, value <= bar) for name, (value, bar) in figures.items()}


HEAD = (
    f"{'model':<10} {'Mbit':>5} {'hosts':>5} {'fault':<15} {'transfer':>9} {'bare':>5} "
    f"{'cost ms':>8} {'named':>6} {'closure':>8} {'unexpl.':>8} {'A/A':>6} {'again':>6} {'loop':>8}"
)


def line(row: Row) -> str:
    cost = "-" if row.cost_ms is None else f"{row.cost_ms:.1f}"
    again = repeated(row.contended)
    loop = "-" if row.loop is None else f"{row.loop.error:+.1%}{'' if row.loop.equal else '*'}"
    return (
        f"{row.model:<10} {row.rate_mbit:>5} {row.hosts:>5} {row.fault:<15} {row.transfer_error:>+9.1%} "
        f"{row.bare_held!s:>5} {cost:>8} {row.named!s:>6} {row.closure:>+8.1%} "
        f"{row.unexplained:>+8.1%} {row.floor:>6.1%} {again:>6} {loop:>8}"
    )
