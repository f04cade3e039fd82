"""The parts of benchmarks/gpu.py, which are no package of the installation."""

from types import SimpleNamespace

import pytest
from support.benchmark_parts import benchmark_part


@pytest.fixture(scope="session")
def gpu_parts():
    """`rows`, `smi`, `phases` and `resnet` of benchmarks/gpu_parts."""
    names = ("rows", "smi", "phases", "resnet")
    return SimpleNamespace(**{name: benchmark_part(f"gpu_parts.{name}") for name in names})
