"""Simulate a program in a worker process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from scaling import resources
from scaling.errors import ScalingError
from scaling.records import codec
from scaling.spec.simulation import Simulated, Simulation

LIMIT_S = 600
"""Time limit of one simulation: 70 billion parameters over thousands of ranks take about half a minute."""


def simulate(asked: Simulation) -> Simulated:
    """What a worker makes of a simulation. A program that fails is an answer; ScalingError where there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scaling.worker.simulated.answer"],
            input=json.dumps(codec.encode(asked)),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path(), "OMP_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        return Simulated(failed=f"the simulation took longer than {LIMIT_S} s")
    try:
        return codec.decode(Simulated, json.loads(done.stdout))
    except ValueError:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[-1] if lines else f"it ended with {done.returncode}"
        raise ScalingError(f"the simulation of {asked.mesh.size} ranks gave no answer: {said}") from None
