"""Simulated runs where the package of the simulated accelerator is not installed."""

import sys

import pytest
from support.commands import refused

INSTALL = "the simulated accelerator is not installed: pip install 'scaling-harness[simulate]'"


@pytest.mark.parametrize(
    "words", [["topology=simulated_hgx_h100", "world_sizes=[8]"], ["topology=local", "topology.device=sim"]]
)
def test_a_run_that_needs_the_simulator_says_how_to_install_it(monkeypatch, capsys, tmp_path, words):
    monkeypatch.setitem(sys.modules, "scaling_simulator", None)
    refused(capsys, ["run", *words, f"run_dir={tmp_path / 'run'}"], INSTALL)
    assert list(tmp_path.iterdir()) == []
