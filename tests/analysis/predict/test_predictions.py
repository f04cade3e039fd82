"""What a prediction says of rounds that were too uneven to tell anything."""

from dataclasses import replace

import pytest

from scaling.analysis.predict import predictions as module
from scaling.analysis.predict.predictions import as_measured, predictions
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.results import Measured


def predicted(run):
    asked = replace(as_measured(run.plan), world_sizes=(4,))
    return predictions(read_sources(run.records), run.plan, run.analysis, asked)


def test_uneven_rounds_predict_no_efficiency_and_split_no_loss(measure, cluster):
    found = predicted(measure(cluster.Truth(world_sizes=(1, 2), rounds=3, steps=4, block_noise=1.5, seed=3)))
    (point,) = found.points
    assert not point.efficiency.tells
    assert point.loss is None
    assert any(line.startswith("at 4 ranks the causes are known to no better") for line in found.notes)


def test_even_rounds_do(measure, cluster):
    found = predicted(measure(cluster.Truth(world_sizes=(1, 2), rounds=4, steps=4)))
    (point,) = found.points
    assert point.efficiency.tells
    assert point.loss is not None
    assert not any("the loss is not split" in line for line in found.notes)


def test_a_cost_that_the_loss_has_no_place_for_is_not_dropped(measure, cluster, monkeypatch):
    predict = module.predict

    def with_another_cost(*args, **options):
        return predict(*args, **options) | {"unheard_of": Measured(0.1)}

    monkeypatch.setattr(module, "predict", with_another_cost)
    with pytest.raises(TypeError, match="unheard_of"):
        predicted(measure(cluster.Truth(world_sizes=(1, 2), rounds=4, steps=4)))
