"""Runs for the commands and the examples of the docs."""

import pytest

from scaling.config.compose import requests
from scaling.records.paths import RunFolder

FIRST, SECOND = "runs/2026-03-02/101500-a1b2c3", "runs/2026-03-02/111500-d4e5f6"
"""The second has a link twice as fast."""
OVERRIDES = ["topology=emulated_pcie", "world_sizes=[1,2]", "topology.link.rate=4gbit", "batch_per_rank=32"]


@pytest.fixture(scope="package")
def runs(cluster, simulate, tmp_path_factory):
    """A folder to work in, with two measured runs below runs/."""
    folder = tmp_path_factory.mktemp("docs")
    (asked,) = requests("run", OVERRIDES).items
    for path, beta_ns in ((FIRST, 2.0), (SECOND, 1.0)):
        simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=4, beta_ns=beta_ns), folder / path)
        RunFolder(folder / path).config.write_text(asked.yaml, encoding="utf-8")
    return folder
