"""Loads the samples by path: under `importlib` mode test files do not import their siblings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    path = Path(__file__).with_name("sample.py")
    found = importlib.util.spec_from_file_location("report_sample", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
