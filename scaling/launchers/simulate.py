"""Simulate a program in a worker process of its own."""

from __future__ import annotations

from scaling import resources
from scaling.launchers.worker_process import TooLongError, answer
from scaling.settings.simulation import Simulated, Simulation

LIMIT_S = 600
"""Time limit of one simulation: 70 billion parameters over thousands of ranks take about half a minute."""


def simulate(asked: Simulation) -> Simulated:
    """What a worker makes of a simulation. A program that fails is an answer; ScalingError where there is none."""
    resources.require_simulator()
    what = f"the simulation of {asked.mesh.size} ranks"
    try:
        return answer("scaling_simulator.answer", asked, Simulated, what=what, limit_s=LIMIT_S)
    except TooLongError:
        return Simulated(failed=f"the simulation took longer than {LIMIT_S} s")
