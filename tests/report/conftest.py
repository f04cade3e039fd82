"""Loads the samples by path: under `importlib` mode test files do not import their siblings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from scaling.store import RunFolder


def _load(name: str) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"report_{name}", Path(__file__).with_name(f"{name}.py"))
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    return _load("sample")


@pytest.fixture(scope="session")
def logged() -> ModuleType:
    return _load("logged")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def home(monkeypatch, tmp_path: Path) -> Path:
    """Nobody's key, and a home of its own: whatever lands there was not asked for."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_SWEEP_ID", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"
