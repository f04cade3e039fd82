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
    "measure=quick",
    "--wait",
)


def main() -> int:
    """0, 1 where a bandwidth misses its bar, 77 where there can be no cluster."""
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
    found = {}
    for number, (partition, rate) in enumerate(test_cluster.RATES_BIT_S.items()):
        reached = _busbw_gbit_s(both / str(number))
        if reached is None:
            print(f"{partition}: no bandwidth of 2 ranks was measured; its page says why")
            return 1
        found[partition] = reached / _ideal_gbit_s(rate)
    print("busbw over ideal: " + " ".join(f"{name} {share:.2f}" for name, share in found.items()))
    return int(any(abs(share - 1) > BAR for share in found.values()))


def _busbw_gbit_s(run: Path) -> float | None:
    points = json.loads((run / "analysis.json").read_text())["points"]
    comm = next(p for p in points if p["world_size"] == 2)["comm"]
    reached = comm and comm["busbw_gbit_s"]
    return float(reached["value"]) if reached else None


def _ideal_gbit_s(rate_bit_s: int) -> float:
    """TCP payload over Ethernet frame at MTU 1500."""
    return rate_bit_s * 1448 / 1514 / 1e9


if __name__ == "__main__":
    sys.exit(main())
