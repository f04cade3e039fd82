"""Run over links of known speed with faults of known cost, and see whether what is printed is true.

100, 200, 500 Mbit and 1 Gbit x 2 and 4 emulated hosts (synthetic compute; a real model at 2 hosts up to
500 Mbit) x clean, stragglers of 20, 50 and 100 ms on one rank, an input stall of 30 ms. The truth:

- transfer: bytes / (rate x 1448/1514), the TCP payload that the shaped link can carry;
- a stall of d ms in one rank's forward or input delays every bucket of that rank by d: it costs d;
- the link is the same with and without a straggler; losses close.

    python benchmarks/ground_truth.py [--quick] [--out FILE]

Bars (exit 1 when missed): pooled bias of transfer <= 3 %, each within 5 %, its interval holds the truth in
>= 90 %; pooled bias of the straggler's cost <= 5 %, right rank and phase each time, bandwidth moved by
<= 5 %; closure and unexplained within the greater of 3 % and the A/A floor. Exit 77 without namespaces.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TCP_SHARE = 1448 / 1514
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
BUDGET_S = {2: 14, 4: 18}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run against its truth; None where it does not apply."""

    model: str
    rate_mbit: int
    hosts: int
    fault: str
    transfer_error: float
    transfer_held: bool
    cost_ms: float | None
    cost_error: float | None
    named: bool | None
    closure: float
    unexplained: float
    floor: float


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


def measure(folder: Path, arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "scaling.cli", "run", *arguments, f"run_dir={folder}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: status {done.returncode}\n{done.stderr[-500:]}")
    return json.loads((folder / "analysis.json").read_text())["points"][-1]


def judge(point: dict[str, Any], model: str, rate: int, hosts: int, fault: str, stall_ms: float) -> Row:
    busbw, truth = point["comm"]["busbw_gbit_s"], rate / 1e3 * TCP_SHARE
    late = point["straggler"]
    floor = max(abs(x - 1) for x in (point["overhead"]["aa_floor"][k] for k in ("value", "low", "high")) if x)
    cost = None if fault == "clean" else (late["cost_ms"]["value"] if late else 0.0)
    phase = {"compute": "forward", "input": "input"}.get(fault)
    named = (
        (late is None) if fault == "clean" else bool(late and late["rank"] == 1 and late["phase"] == phase)
    )
    return Row(
        model=model,
        rate_mbit=rate,
        hosts=hosts,
        fault=fault if fault == "clean" else f"{fault} {stall_ms:g} ms",
        transfer_error=truth / busbw["value"] - 1,  # time goes with the inverse of bandwidth
        transfer_held=busbw["low"] <= truth <= busbw["high"] if busbw["low"] else False,
        cost_ms=cost,
        cost_error=None if cost is None else cost / stall_ms - 1,
        named=named,
        closure=point["closure"]["value"] - 1,
        unexplained=point["loss"]["unexplained"]["value"],
        floor=floor,
    )


def cells(quick: bool) -> list[tuple[str, int, int, str, float]]:
    grid = [("synthetic", rate, hosts, *fault) for rate in RATES_MBIT for hosts in (2, 4) for fault in FAULTS]
    grid += [("mlp", rate, 2, *fault) for rate in RATES_MBIT[:3] for fault in FAULTS]
    return [c for c in grid if c[1] in (200, 1000) and c[3:] in (FAULTS[0], FAULTS[2])] if quick else grid


def bars(rows: list[Row]) -> dict[str, tuple[float, float, bool]]:
    """Name -> (measured, bar, met)."""
    transfer = [row.transfer_error for row in rows]
    costs = [row.cost_error for row in rows if row.cost_error is not None]
    clean = {(r.model, r.rate_mbit, r.hosts): r.transfer_error for r in rows if r.fault == "clean"}
    moved = [
        abs((1 + r.transfer_error) / (1 + clean[r.model, r.rate_mbit, r.hosts]) - 1)
        for r in rows
        if r.fault != "clean"
    ]
    closing = [
        max(0.0, abs(value) - max(0.03, row.floor))
        for row in rows
        for value in (row.closure, row.unexplained)
    ]
    found = {
        "transfer, pooled bias": (abs(sum(transfer) / len(transfer)), 0.03),
        "transfer, worst": (max(map(abs, transfer)), 0.05),
        "transfer, missed by its interval": (sum(not r.transfer_held for r in rows) / len(rows), 0.10),
        "straggler cost, pooled bias": (abs(sum(costs) / len(costs)), 0.05),
        "straggler not named, or named on a clean run": (sum(not r.named for r in rows) / len(rows), 0.0),
        "bandwidth moved by a straggler, worst": (max(moved), 0.05),
        "closure and unexplained beyond 3 % and the A/A floor, worst": (max(closing), 0.0),
    }
    return {name: (value, bar, value <= bar) for name, (value, bar) in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few cells only")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    if subprocess.run(["unshare", "-Urnm", "true"], check=False, capture_output=True).returncode:
        print("user namespaces are not to be had here (`unshare -Urnm true` fails)")
        return 77
    print(f"{'model':<10} {'Mbit':>5} {'hosts':>5} {'fault':<15} {'transfer':>9} {'held':>5} {'cost ms':>8} "
          f"{'named':>6} {'closure':>8} {'unexpl.':>8} {'A/A':>6}")  # fmt: skip
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="scaling-truth-") as scratch:
        for index, cell in enumerate(cells(options.quick)):
            row = judge(measure(Path(scratch) / str(index), overrides(*cell)), *cell)
            rows.append(row)
            cost = "-" if row.cost_ms is None else f"{row.cost_ms:.1f}"
            print(f"{row.model:<10} {row.rate_mbit:>5} {row.hosts:>5} {row.fault:<15} {row.transfer_error:>+9.1%} "
                  f"{row.transfer_held!s:>5} {cost:>8} {row.named!s:>6} {row.closure:>+8.1%} {row.unexplained:>+8.1%} "
                  f"{row.floor:>6.1%}", flush=True)  # fmt: skip
    found = bars(rows)
    for name, (value, bar, met) in found.items():
        print(f"{name:<62} {value:7.1%}  bar {bar:.0%}  {'met' if met else 'MISSED'}")
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    ok = all(met for _, _, met in found.values())
    print(json.dumps({"benchmark": "ground_truth", "runs": len(rows), "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
