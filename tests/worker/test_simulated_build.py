"""What a machine lacks to build the simulated accelerator."""

from __future__ import annotations

import importlib.metadata

import pytest

from scaling.worker.simulated import build


@pytest.mark.parametrize(
    ("version", "old"), [("2.11.0+cu130", True), ("2.12.1", True), ("2.13.0+cpu", False), ("3.0.0", False)]
)
def test_a_torch_that_is_too_old_is_named(monkeypatch, version, old):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    said = build.missing() or ""
    assert said.endswith(f"needs torch 2.13 or newer; this is torch {version}") is old
