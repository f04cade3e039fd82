"""Builds the device once, before any rank starts, or says why it cannot be."""

import importlib
import sys
from pathlib import Path

import pytest

from scaling_simulator import build

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")


@pytest.fixture(scope="session", autouse=True)
def _built() -> None:
    lacking = build.missing()
    if lacking is not None:
        pytest.skip(lacking)
    build.built()


@pytest.fixture(scope="module")
def simulated_parts():
    """simulated_parts(name): a part of benchmarks/simulated_gpu.py; the ranks' processes find it by the path too."""
    sys.path.insert(0, BENCHMARKS)
    try:
        yield lambda name: importlib.import_module(f"simulated_parts.{name}")
    finally:
        sys.path.remove(BENCHMARKS)
