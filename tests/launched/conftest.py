"""Real torchrun, real Gloo, real network namespaces; each run takes tens of seconds and serves several tests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from support.commands import run_scaling
from support.processes import NO_NAMESPACES, user_namespaces


def pytest_collection_modifyitems(items):
    reason = "" if user_namespaces() else NO_NAMESPACES
    for item in items:
        if "launched" in str(item.path):
            item.add_marker(pytest.mark.launch)
            if reason and "emulated" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def scaling():
    """Run the command in a process of its own; returns the finished process."""
    return run_scaling


@pytest.fixture
def measured(scaling, tmp_path):
    """measured("model=mlp seed=1", ...): `scaling run` of these overrides; its folder, and the process that did it."""

    def run(*overrides: str) -> tuple[Path, subprocess.CompletedProcess[str]]:
        words = " ".join(overrides).split()
        done = scaling("run", *words, "run_dir=run", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return tmp_path / "run", done

    return run


@pytest.fixture(scope="session")
def analysis_of():
    def read(run: Path) -> dict:
        return json.loads((run / "analysis.json").read_text())

    return read


@pytest.fixture(scope="session")
def point_of(analysis_of):
    def read(run: Path, world_size: int) -> dict:
        return next(p for p in analysis_of(run)["points"] if p["world_size"] == world_size)

    return read
