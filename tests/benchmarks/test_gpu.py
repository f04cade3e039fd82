"""The GPU benchmark where there is none: it skips with the reason, and its own code runs on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks/gpu.py"


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_without_a_gpu_it_skips_and_says_why():
    done = run()
    assert (done.returncode, done.stdout) == (77, "no CUDA device here\n"), done.stderr
