"""What a Python shell shows of a comparison and of a prediction."""

import pickle

import pytest

from scaling import compare, load, predict
from scaling.analysis.results import Comparison, Prediction
from scaling.config.compose import requests
from scaling.records import files
from scaling.records.paths import RunFolder


@pytest.fixture(scope="module")
def run(simulate, cluster, tmp_path_factory):
    folder = RunFolder(tmp_path_factory.mktemp("shown") / "run")
    simulate(cluster.Truth(world_sizes=(1, 2), hosts=2, rounds=4), folder.path)
    overrides = ["topology=emulated_pcie", "world_sizes=[1,2]", "batch_per_rank=32"]
    folder.config.write_text(requests("run", overrides).items[0].yaml, encoding="utf-8")
    return load(folder.path)


def test_a_comparison_is_shown_as_the_terminal_prints_it(run):
    found = compare(run, run)
    assert isinstance(found, Comparison)
    assert "Both are the same run" in repr(found)
    assert "Measured(" not in repr(found)
    assert len(repr(found).splitlines()) < 40


def test_a_prediction_is_shown_as_the_terminal_prints_it(run):
    found = predict(run, "topology.link.rate=16gbit", "world_sizes=[2]")
    assert isinstance(found, Prediction)
    assert "2 ranks" in repr(found)
    assert "Measured(" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    assert files.encode(found)["points"][0]["world_size"] == 2
