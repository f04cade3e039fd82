"""Resampled means of every rank's phases, and predictions from a stretch of them at a time."""

import numpy as np
import pytest

from scaling.analysis.predict import change as by_rank
from scaling.analysis.predict.change import ByRank, Change, stretches
from scaling.analysis.predict.sources import read_sources
from scaling.analysis.predict.whatif import outcome
from scaling.analysis.statistics.rounds import Rounds, UnknownQuantityError

ROUNDS, RANKS = 6, 5


@pytest.fixture
def values():
    of_ranks = np.random.default_rng(1).uniform(1e6, 2e6, (ROUNDS, RANKS))
    of_ranks[2, 3] = np.nan
    return of_ranks


@pytest.fixture
def each(values):
    """The same as a quantity of each rank."""
    return Rounds({str(rank): values[:, rank] for rank in range(RANKS)}, np.zeros(ROUNDS, dtype=np.int64))


def test_they_are_those_of_a_quantity_for_each_rank(values, each):
    means, found = each.means(), ByRank.of({"input": values}, each.weights)
    wanted = np.stack([means[str(rank)] for rank in range(RANKS)], axis=1)
    np.testing.assert_allclose(found.means(slice(None))["input"], wanted, rtol=1e-12)
    np.testing.assert_allclose(found.means(slice(3, 9))["input"], wanted[3:9], rtol=1e-12)


@pytest.mark.parametrize("numbers", [1, 7 * RANKS, 10**9])
def test_their_mean_does_not_depend_on_the_stretches(values, each, monkeypatch, numbers):
    monkeypatch.setattr(by_rank, "SLICE_VALUES", numbers)
    found = ByRank.of({"input": values}, each.weights)
    np.testing.assert_allclose(
        found.mean()["input"], found.means(slice(None))["input"].mean(axis=1), rtol=1e-12
    )


def test_stretches_follow_each_other_and_leave_nothing_out(monkeypatch):
    monkeypatch.setattr(by_rank, "SLICE_VALUES", 30)
    found = [range(1001)[stretch] for stretch in stretches(1001, 10)]
    assert [at for stretch in found for at in stretch] == [*range(1001)]
    assert max(map(len, found)) == 3


def test_rounds_that_a_rank_lacks_are_told(values, each):
    masks = ByRank.of({"input": values}, each.weights).present()
    assert sorted(mask.tolist() for mask in masks) == [[True, True, False, True, True, True], [True] * ROUNDS]


def test_a_rank_without_any_is_refused(values, each):
    values[:, 1] = np.nan
    with pytest.raises(UnknownQuantityError):
        ByRank.of({"input": values}, each.weights)


@pytest.mark.parametrize(
    "change",
    [
        Change(),
        Change(bucket_cap_mb=1.0),
        Change(world_size=1),
        Change(world_size=16, compute_scale=2.0),
        Change(without_straggler=True),
    ],
)
def test_a_prediction_does_not_depend_on_the_stretches(measure, cluster, monkeypatch, change):
    late = cluster.Straggler(rank=1, extra_ns=4e6)
    run = measure(cluster.Truth(world_sizes=(4,), rounds=6, steps=4, stragglers=(late,)))
    (source,) = read_sources(run.records)
    whole = outcome(source, change)
    monkeypatch.setattr(by_rank, "SLICE_VALUES", 400)
    parts = outcome(source, change)
    assert whole.keys() == parts.keys()
    for name, values in whole.items():
        assert len(values) == len(source.plain)
        np.testing.assert_allclose(parts[name], values, rtol=1e-9, atol=1e-12)
