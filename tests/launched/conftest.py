"""Real torchrun, real Gloo, real network namespaces; each run takes tens of seconds and serves several tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scaling import resources

RUN_S = 240


def namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-Urnm", "true"], capture_output=True, check=False).returncode == 0


def pytest_collection_modifyitems(items):
    reason = "" if namespaces() else "user namespaces are not to be had here (`unshare -Urnm true` fails)"
    for item in items:
        if "launched" in str(item.path):
            item.add_marker(pytest.mark.launch)
            if reason and "emulated" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def scaling():
    """Run the command in a process of its own; returns the finished process."""

    def call(*arguments: str, cwd: Path, timeout: float = RUN_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "scaling.cli", *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "PYTHONPATH": resources.import_path()},
        )

    return call


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
