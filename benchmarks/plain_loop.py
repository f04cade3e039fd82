"""Compare the size sweep with a plain all-reduce loop of a dozen lines, on the same shaped link.

    python benchmarks/plain_loop.py [--rate 500mbit]

Two emulated hosts; the loop is what anyone would write to see the bandwidth of a link. `scaling run` and the
loop alternate. Bar: bandwidths within 3 % of each other from 1 MiB on. Exit 77 without namespaces.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import harness
from ending import exit_with
from hosts import run_on_hosts

BAR = 0.03
SIZES = (2**20, 2**22)
REPEATS = {2**20: 24, 2**22: 12}
TURNS = 2


def loop(out: Path) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    seconds = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        for _ in range(2):
            dist.all_reduce(tensor)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(REPEATS[size]):  # no barrier between them: ranks would start at different times
            dist.all_reduce(tensor)
        seconds[size] = (time.perf_counter() - begin) / REPEATS[size]
    if dist.get_rank() == 0:
        out.write_text(json.dumps(seconds))
    dist.barrier()
    dist.destroy_process_group()


def run_loop(folder: Path, rate: str) -> dict[int, float]:
    """Seconds by size: the loop under torchrun on two hosts of the same script's network."""
    out = folder / "loop.json"
    run_on_hosts(__file__, ["--loop", str(out)], hosts=2, rate=rate, folder=folder)
    return {int(size): seconds for size, seconds in json.loads(out.read_text()).items()}


def run_scaling(folder: Path, rate: str) -> dict[int, float]:
    """Seconds by size, from the run's own fabric curve."""
    overrides = ["topology=emulated_pcie", f"topology.link.rate={rate}", "world_sizes=[2]", "model=synthetic"]
    overrides += ["model.param_mb=1", "model.compute_ms=5", "measure=quick", "measure.budget_s=20"]
    overrides += [
        "measure.rounds_max=12",
        "measure.steps=4",
        "tracking=disabled",
    ]
    curve = harness.measure(folder / "run", *overrides)["fabric"]["levels"][-1]["curve"]
    return {p["bytes"]: p["time_us"]["value"] / 1e6 for p in curve if p["bytes"] in SIZES}


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("--rate", default="500mbit")
    parser.add_argument("--loop", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        loop(options.loop)
        return 0
    if not harness.has_namespaces():
        return harness.CANNOT
    ours: list[dict[int, float]] = []
    plain: list[dict[int, float]] = []
    with tempfile.TemporaryDirectory(prefix="scaling-loop-") as scratch:
        for turn in range(TURNS):
            folder = Path(scratch) / str(turn)
            folder.mkdir()
            plain.append(run_loop(folder, options.rate))
            ours.append(run_scaling(folder, options.rate))
    print(
        f"{'bytes':>9} {'plain loop':>12} {'scaling run':>12} {'difference':>11}   ({options.rate}, Gbit/s)"
    )
    worst = 0.0
    for size in SIZES:
        a, b = (sum(t[size] for t in rates) / TURNS for rates in (plain, ours))
        worst = max(worst, abs(a / b - 1))
        print(f"{size:>9} {size * 8 / a / 1e9:>12.4f} {size * 8 / b / 1e9:>12.4f} {a / b - 1:>+11.2%}")
    ok = worst <= BAR
    return harness.result("plain_loop", ok=ok, worst=worst, bar=BAR)


if __name__ == "__main__":
    exit_with(main)
