"""Real faults in real launches. A run survives several, one a launch, so that one run serves several cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START_S = 60
"""What torchrun and torch may take to start on a busy machine; 5 s on two free cores."""
STEP_TIMEOUT_S = 10
"""measure.step_timeout_s of these runs: the longest that a hang stays unseen in a collective."""
END_S = 30
"""From the first sign of a failure until nothing is left of a launch, at most."""

SHORT = (
    "topology=local",
    "topology.device=cpu",
    "topology.ranks_per_host=2",
    "measure=quick",
    "measure.budget_s=4",
    "measure.steps=3",
    "measure.lead_in=1",
    "measure.fabric_max=4KiB",
    f"measure.step_timeout_s={STEP_TIMEOUT_S}",
    "tracking=disabled",
    "run_dir=run",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if "faults" in item.path.parts:
            item.add_marker(pytest.mark.launch)
            item.add_marker(
                pytest.mark.slow
            )  # minutes in all, and not yet seen green together: `make test-all`


class Ended:
    """A finished `scaling run` and what it left."""

    def __init__(self, process, out, err, folder, took_s):
        self.code, self.out, self.err, self.folder, self.took_s = process.returncode, out, err, folder, took_s

    @property
    def status(self):
        return json.loads((self.folder / "status.json").read_text())

    @property
    def analysis(self):
        return json.loads((self.folder / "analysis.json").read_text())

    def launch(self, index):
        return self.status["launches"][index]


def begin(cwd, *arguments, prefix=(), env=None):
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "scaling.cli", "run", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
    )


def finish(process, cwd, started, bound_s):
    try:
        out, err = process.communicate(timeout=bound_s)
    finally:
        process.kill()
    return Ended(process, out, err, cwd / "run", time.monotonic() - started)


@pytest.fixture
def faulty(tmp_path, left_behind):
    """faulty(*faults, overrides): run the faulty model to the end; bounded, and nothing is left behind."""

    def run(*faults, overrides=(), bound_s=None):
        shutil.copy(Path(__file__).with_name("faulty.py"), tmp_path)
        bound_s = bound_s or (len(faults) + 1) * (START_S + STEP_TIMEOUT_S + END_S)
        started = time.monotonic()
        process = begin(
            tmp_path,
            *SHORT,
            "model=custom",
            "model._target_=faulty.factory",
            f"+model.args.faults=[{','.join(repr(fault) for fault in faults)}]",
            "world_sizes=[2]",
            *overrides,
        )
        ended = finish(process, tmp_path, started, bound_s)
        assert left_behind(tmp_path) == []
        return ended

    return run


@pytest.fixture
def driver(tmp_path):
    """driver(overrides): start a run and leave it running; ended with the test."""
    started = []

    def start(*overrides, **more):
        started.append(begin(tmp_path, *SHORT, "model=synthetic", *overrides, **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def until():
    """until(condition, process): wait for it; bounded, and not past the process's end."""

    def wait(condition, process=None, seconds=START_S):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if condition():
                    return
            except (OSError, ValueError):
                pass
            assert process is None or process.poll() is None, process.communicate()
            time.sleep(0.1)
        raise AssertionError(f"did not come about within {seconds} s")

    return wait
