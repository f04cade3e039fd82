"""Trainings of several ranks, once for each module of tests: its SCRIPT on its RANKS, or two."""

import pytest
from support.gloo_ranks import run_ranks

from scaling.cli.pipeline import rebuild
from scaling.records.paths import RunFolder


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The folder in which the script keeps its runs."""
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def ranks(request, kept):
    """What each rank of the script answered."""
    return run_ranks(request.module.SCRIPT, getattr(request.module, "RANKS", 2), kept / "store", kept)


@pytest.fixture(scope="module")
def found(ranks, kept):
    """found(name) -> the analysis of one of the script's runs."""
    return lambda name: rebuild(RunFolder(kept / name)).analysis
