"""Measure how long `scaling --help` (bar 0.3 s) and `scaling plan` (bar 1 s) take to start.

The best of several starts in fresh processes, interleaved; the last line is the result. Also prints
which heavy packages each command imports; the bar is none.
"""

from __future__ import annotations

import subprocess
import sys
import time

import harness
from ending import exit_with

BARS_S = {"--help": 0.3, "plan topology=emulated_pcie": 1.0}
HEAVY = ("torch", "wandb", "plotly", "polars", "scipy")
STARTS = 7

COUNT = f"""
import sys, io, contextlib
from scaling.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main(sys.argv[1:])
print(" ".join(m for m in {HEAVY!r} if m in sys.modules))
"""


def seconds(arguments: str) -> float:
    begin = time.perf_counter()
    subprocess.run([*harness.SCALING, *arguments.split()], check=True, capture_output=True)
    return time.perf_counter() - begin


def main() -> int:
    times: dict[str, list[float]] = {name: [] for name in BARS_S}
    for _ in range(STARTS):
        for name, seconds_each in times.items():
            seconds_each.append(seconds(name))
    ok = True
    print(f"{'command':<32} {'best s':>7} {'median s':>9} {'bar s':>6}  heavy imports")
    for name, bar in BARS_S.items():
        command = [sys.executable, "-c", COUNT, *name.split()]
        heavy = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        best, median = min(times[name]), sorted(times[name])[STARTS // 2]
        ok &= best <= bar and not heavy
        print(f"scaling {name:<24} {best:7.3f} {median:9.3f} {bar:6.1f}  {heavy or 'none'}")
    return harness.result(
        "startup", ok=ok, best_s={name: round(min(seconds_each), 3) for name, seconds_each in times.items()}
    )


if __name__ == "__main__":
    exit_with(main)
