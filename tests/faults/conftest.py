"""Real faults in real launches. A run survives several, one a launch, so that one run serves several cases."""

import json
import shutil
import time
from pathlib import Path

import pytest
from support.commands import start_scaling

ROOT = Path(__file__).parents[2]
SLOW_S = 20
"""Processor time of a slow step (faulty.py): longer than the longest that a hang stays unseen."""
START_S = 60
"""What torchrun and torch may take to start on a busy machine; 5 s on two free cores."""
STEP_TIMEOUT_S = 12
"""measure.step_timeout_s of these runs. Their steps are short, so it is the longest that a hang stays unseen."""
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
    return START_S + STEP_TIMEOUT_S + END_S + (SLOW_S if fault.startswith("compute@") else 0)


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
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        process = start_scaling(
            "run",
            *SHORT,
            "model=custom",
            "model._target_=faulty.factory",
            f"+model.args.faults={list(asked['model'])}",
            *(["data._target_=faulty.Samples", f"+data.args.faults={list(faults)}"] if of == "data" else []),
            "world_sizes=[2]",
            *overrides,
            cwd=tmp_path,
            env={"TMPDIR": str(scratch)},
        )
        ended = finish(process, tmp_path, started, sum(map(bound_s, (*faults, ""))))
        for fault, launch in zip(faults, ended.status["launches"], strict=False):
            assert launch["duration_s"] <= bound_s(fault), launch
        assert left_behind(tmp_path) == []
        assert list(scratch.iterdir()) == []
        return ended

    return run


@pytest.fixture
def driver(tmp_path):
    """driver(overrides): start a run and leave it running; ended with the test."""
    started = []

    def start(*overrides, **more):
        started.append(start_scaling("run", *SHORT, "model=synthetic", *overrides, cwd=tmp_path, **more))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
