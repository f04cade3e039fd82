"""Build the simulated accelerator before ranks start: built by a rank, its peers would wait for it in a collective."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

from scaling import resources
from scaling.errors import InputError
from scaling.settings.plan import Plan
from scaling.settings.topology import SIMULATED

LIMIT_S = 960
"""A build takes about a minute of processor time; it has a limit of its own below this one."""


def build_device(plan: Plan) -> None:
    """Build what a plan on simulated accelerators needs and the cache lacks. InputError where it cannot be built."""
    if plan.spec.topology.device == SIMULATED:
        _build()


@functools.cache
def _build() -> None:
    """Once: a plan is checked, its step timed and its run begun by one process."""
    resources.require_simulator()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "scaling_simulator"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path()},
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"topology.device=sim: it was not built within {LIMIT_S} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InputError(f"topology.device=sim: {lines[-1] if lines else f'failed with {done.returncode}'}")
