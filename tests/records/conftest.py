"""A run of a module's own TRUTH, and copies of it to be changed."""

import shutil

import pytest
from support.simulated_cluster import simulate

from scaling.records.paths import RunFolder


@pytest.fixture(scope="module")
def original(request, tmp_path_factory):
    """The run of the module's TRUTH, as its ranks left it."""
    folder = RunFolder(tmp_path_factory.mktemp("original") / "run")
    simulate(request.module.TRUTH, folder.path)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return RunFolder(shutil.copytree(original.path, tmp_path / "run"))
