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
QUIET_S = 140
"""The longest that a hang stays unseen outside of blocks: two minutes, and twice the above (docs/resume.md)."""
MISSING_S = 40
"""The longest that it stays unseen, outside of collectives, that a rank is gone."""
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


def bound_s(fault):
    """What a launch with a fault may take: its start, the time in which a hang is noticed, its end."""
    outside = "@start@" in fault or "@end@" in fault
    unseen = MISSING_S if fault.startswith("vanish@") else QUIET_S
    return START_S + (unseen if outside else STEP_TIMEOUT_S) + END_S


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


def finish(process, cwd, started, within_s):
    try:
        out, err = process.communicate(timeout=within_s)
    finally:
        process.kill()
    return Ended(process, out, err, cwd / "run", time.monotonic() - started)


@pytest.fixture
def faulty(tmp_path, left_behind):
    """faulty(*faults, of="model", overrides): run the faulty model, or its data, to the end.

    Every launch ends within its bound, and nothing is left behind.
    """

    def run(*faults, of="model", overrides=()):
        shutil.copy(Path(__file__).with_name("faulty.py"), tmp_path)
        started = time.monotonic()
        asked = {"model": (), "data": ()} | {of: faults}
        process = begin(
            tmp_path,
            *SHORT,
            "model=custom",
            "model._target_=faulty.factory",
            f"+model.args.faults={list(asked['model'])}",
            *(["data._target_=faulty.Samples", f"+data.args.faults={list(faults)}"] if of == "data" else []),
            "world_sizes=[2]",
            *overrides,
        )
        ended = finish(process, tmp_path, started, sum(map(bound_s, (*faults, ""))))
        for fault, launch in zip(faults, ended.status["launches"], strict=False):
            assert launch["duration_s"] <= bound_s(fault), launch
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
