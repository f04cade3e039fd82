"""`make slurm-demo`: two partitions of a real Slurm compared by one command; 77 and the reason where there is none.

The runs and the comparison stay in `runs/slurm-demo-<time>` below the current folder. The last line is the result: what
the gradients got of what each partition's link can carry.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cluster as test_cluster  # the file beside this one

ROOT = Path(__file__).parents[2]
BAR = 0.10
"""Each bandwidth is to be within so much of its link."""
COMMAND = (
    "submit",
    "-m",
    "topology=slurm_pcie,slurm_nvlink",
    "world_sizes=[1,2]",
    "model=synthetic",
    "model.param_mb=8",
    "measure=quick",
    "measure.budget_s=60",
    "--wait",
)
"""8 MiB take 0.28 s of a step on the slower link. Twice the budget of `quick` then holds three rounds with the details
that tell the bandwidth, on a busy machine too."""


def main() -> int:
    """0, 1 where a bandwidth misses its bar or there is none, 77 where there can be no cluster.

    A partition whose bandwidth was not measured is named with the reason, and the others are judged.
    """
    reason = test_cluster.unavailable()
    if reason is not None:
        print(f"no Slurm cluster here: {reason}")
        return test_cluster.UNAVAILABLE
    both = Path.cwd() / "runs" / f"slurm-demo-{time.strftime('%Y-%m-%d-%H%M%S')}"
    both.mkdir(parents=True)
    with test_cluster.cluster() as cluster:
        print(f"$ scaling {' '.join(COMMAND)}", flush=True)
        python = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "scaling.cli")
        argv = cluster.command(*python, *COMMAND, f"run_dir={both}", cwd=both.parent)
        done = subprocess.run(argv, env=cluster.environment(), check=False)
    print(f"pages and records stay in {both}")
    if done.returncode:
        return 1
    return judged({name: both / str(number) for number, name in enumerate(test_cluster.RATES_BIT_S)})


def judged(runs: dict[str, Path]) -> int:
    """Print what each partition's run (its folder) reached of its link, and say with 1 that the bar is missed.

    A run in which other programs took the cores is printed with that beside it and not held to the bar: what its
    gradients got is not what the link carries.
    """
    reached, quiet = [], []
    for partition, run in runs.items():
        analysis = json.loads((run / "analysis.json").read_text())
        warnings = analysis["quality"]["warnings"]
        busbw = _busbw_gbit_s(analysis)
        if busbw is None:
            print(f"{partition}: no bandwidth of 2 ranks: {'; '.join(warnings) or 'its page says why'}")
            continue
        share = busbw / _ideal_gbit_s(test_cluster.RATES_BIT_S[partition])
        contended = any(warning.startswith("contended") for warning in warnings)
        reached.append(f"{partition} {share:.2f}{' (contended, not judged)' if contended else ''}")
        quiet += [] if contended else [share]
    print("busbw over ideal: " + (" ".join(reached) or "none"))
    return int(not reached or any(abs(share - 1) > BAR for share in quiet))


def _busbw_gbit_s(analysis: dict[str, Any]) -> float | None:
    comm = next((p["comm"] for p in analysis["points"] if p["world_size"] == 2), None)
    reached = comm and comm["busbw_gbit_s"]
    return float(reached["value"]) if reached else None


def _ideal_gbit_s(rate_bit_s: int) -> float:
    """TCP payload over Ethernet frame at MTU 1500."""
    return rate_bit_s * 1448 / 1514 / 1e9


if __name__ == "__main__":
    sys.exit(main())
