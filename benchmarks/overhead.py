"""Measure the cost of the probe: paired, interleaved blocks of steps on two Gloo ranks, with an A/A control.

    python benchmarks/overhead.py [--rounds N] [--only long|short|sharded]

Arms, in random order in every round: plain, plain again (A/A), the light probe (phase stamps), the detailed
probe (per-bucket stamps; sampled blocks only), a plain Python communication hook with a `.then` stamp (as
one would write by hand), and torch.profiler. CPU time is that of the whole process, with Gloo's threads.

Two models under DDP with the same number of buckets: one with a long step, for the wall time, and one with a short
step, for the CPU time. The probe's work in a step is the same in both, but the CPU time of a long step varies by more
than the bar. A third is sharded by fully_shard (parallel=fsdp), with a step of some 50 ms.

Bars: the light probe takes <= 0.5 ms of CPU a step (of the short one), and its wall time is within 1 % + the A/A
half-width (of the long one, and of the sharded one).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import harness
import numpy as np
from ending import exit_with
from hosts import run_on_loopback
from overhead_parts.worker import CASES, worker

CPU_BAR_MS, WALL_BAR = 0.5, 0.01


def table(name: str, times: dict[str, Any], count: int) -> dict[str, tuple[Any, Any]]:
    """Print a case: for each arm, its wall time over plain and its extra CPU time in ms a step."""
    from scaling.analysis.statistics.rounds import Rounds

    arms = CASES[name].arms
    rounds = Rounds(
        {f"{kind}.{arm}": np.array(times[kind][arm]) for kind in ("wall", "cpu") for arm in arms},
        np.zeros(count, dtype=np.int64),
    )
    plain_ms = rounds.measure(lambda m: (m["wall.plain"] + m["wall.again"]) / 2 * 1e3)
    assert plain_ms is not None
    parts = "buckets" if CASES[name].parallel == "ddp" else "units"
    print(f"{name} step: {plain_ms.value:.1f} ms, {times['buckets']} {parts}, "
          f"{count} rounds of {CASES[name].steps} steps")  # fmt: skip
    print(f"{'arm':<12} {'wall over plain':>28} {'CPU over plain, ms a step':>34}")
    ratios: dict[str, tuple[Any, Any]] = {}
    for arm in arms[1:]:
        ratio = rounds.ratio(lambda m, n=arm: m[f"wall.{n}"] / m["wall.plain"])  # type: ignore[misc]
        extra = rounds.measure(lambda m, n=arm: (m[f"cpu.{n}"] - m["cpu.plain"]) * 1e3)  # type: ignore[misc]
        assert ratio is not None
        assert extra is not None
        ratios[arm] = (ratio, extra)
        wall_text = f"{ratio.value - 1:+.2%} [{ratio.low - 1:+.2%}, {ratio.high - 1:+.2%}]"  # type: ignore[operator]
        print(f"{arm:<12} {wall_text:>28} {extra.value:>12.3f} [{extra.low:.3f}, {extra.high:.3f}]")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", choices=tuple(CASES), help="this case alone, and its bars")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [options.only] if options.only else list(CASES)
    if options.worker:
        worker(names, options.rounds, options.worker)
        return 0
    import tempfile

    with tempfile.TemporaryDirectory(prefix="scaling-overhead-") as scratch:
        out = Path(scratch) / "times.json"
        arguments = ["--worker", str(out), "--rounds", str(options.rounds)]
        arguments += ["--only", options.only] if options.only else []
        run_on_loopback(__file__, arguments, ranks=2, folder=Path(scratch))
        times = json.loads(out.read_text())
    tables = {name: table(name, times[name], options.rounds) for name in names}
    ok, figures = True, {}
    if "short" in tables:
        extra = tables["short"]["light"][1]
        ok, figures["light_cpu_ms"] = extra.value <= CPU_BAR_MS, extra.value
        print(f"light probe: CPU {extra.value:.3f} ms a short step, bar {CPU_BAR_MS}")
    for name, key in (("long", "light_wall"), ("sharded", "light_wall_sharded")):
        if name in tables:
            floor, ratio = tables[name]["again"][0].half_width, tables[name]["light"][0]
            ok, figures[key] = ok and ratio.value - 1 <= WALL_BAR + floor, ratio.value - 1
            print(
                f"light probe: wall of a {name} step {ratio.value - 1:+.2%}, bar {WALL_BAR:.0%} + A/A {floor:.2%}"
            )
    return harness.result("overhead", ok=ok, **figures)


if __name__ == "__main__":
    exit_with(main)
