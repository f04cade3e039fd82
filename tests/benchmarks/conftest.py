"""The parts of benchmarks/gpu.py, which are no package of the installation."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def gpu_parts():
    """`rows`, `smi`, `phases` and `resnet` of benchmarks/gpu_parts."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        names = ("rows", "smi", "phases", "resnet")
        return SimpleNamespace(**{name: importlib.import_module(f"gpu_parts.{name}") for name in names})
    finally:
        sys.path.remove(str(BENCHMARKS))
