"""Results that were never measured, and a W&B home of its own."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from support import results, results_by_case

from scaling.records.paths import RunFolder


@pytest.fixture(scope="session")
def sample() -> ModuleType:
    return results


@pytest.fixture(scope="session")
def logged() -> ModuleType:
    return results_by_case


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "run").mkdir()
    return RunFolder(tmp_path / "run")


@pytest.fixture
def home(monkeypatch, tmp_path: Path) -> Path:
    """No W&B key, and an empty home folder, in which a test sees all that is written."""
    for name in ("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_SWEEP_ID", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"
