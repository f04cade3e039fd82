"""Modules of benchmarks/, which is no package of the installation."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def benchmark_part(name: str, folder: Path = BENCHMARKS) -> ModuleType:
    """A module, found as by a program that is run from this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return importlib.import_module(name)
