"""What a machine lacks to build the simulated accelerator."""

import importlib.metadata
import sys

import pytest
from support.processes import captured

from scaling_simulator import build


@pytest.mark.parametrize(
    ("version", "old"), [("2.11.0+cu130", True), ("2.12.1", True), ("2.13.0+cpu", False), ("3.0.0", False)]
)
def test_a_torch_that_is_too_old_is_named(monkeypatch, version, old):
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    said = build.missing() or ""
    assert said.endswith(f"needs torch 2.13 or newer; this is torch {version}") is old


def test_where_it_lies_is_known_without_an_import_of_torch():
    """A run asks before each of its steps towards a launch, and torch takes seconds."""
    ask = (
        "import sys; from scaling_simulator.build import folder; print(folder().name, 'torch' in sys.modules)"
    )
    said = captured([sys.executable, "-c", ask], check=True).stdout.split()
    assert said[0].startswith(f"torch-{importlib.metadata.version('torch')}-py")
    assert said[1] == "False"
