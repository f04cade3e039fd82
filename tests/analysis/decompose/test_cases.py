"""Percentiles and the knee from requests whose truth is known."""

import numpy as np
import polars as pl
import pytest

from scaling.analysis.decompose.cases import _kneed, _throughput, _with_efficiency, whole_rounds
from scaling.analysis.results import InferenceCase, Measured
from scaling.analysis.statistics.resampling import resampling_weights
from scaling.analysis.statistics.rounds import percentiles

SHARES = (0.5, 0.9, 0.99)


def rounds(values):
    """Percentiles of requests, a list a round."""
    unit = np.repeat(np.arange(len(values)), [len(v) for v in values])
    weights = resampling_weights(np.zeros(len(values), dtype=np.int64), 0)
    return percentiles(np.concatenate(values), unit, weights, SHARES, (len(values), 1))


def test_percentiles_are_those_of_all_requests():
    values = np.arange(1.0, 1001.0)
    found = rounds(np.random.default_rng(0).permutation(values).reshape(5, 200))
    assert [m.value for m in found] == [500, 900, 990]
    assert all(m.n == 5 for m in found)


def test_more_requests_than_bins_move_a_percentile_by_no_more_than_a_bin():
    values = np.arange(1.0, 20_001.0)
    found = rounds(np.random.default_rng(0).permutation(values).reshape(4, 5000))
    assert [m.value for m in found] == pytest.approx([10_000, 18_000, 19_800], abs=6)


def test_too_few_requests_have_no_99th_percentile():
    p50, p90, p99 = rounds(np.arange(1.0, 100.0).reshape(3, 33))
    assert p50.value == 50
    assert p90.value == 90
    assert p99 is None


def test_two_rounds_bear_no_interval():
    p50, _, _ = rounds(np.arange(1.0, 201.0).reshape(2, 100))
    assert (p50.low, p50.high) == (None, None)


def test_intervals_hold_the_true_percentile_as_often_as_they_say_where_rounds_differ():
    rng = np.random.default_rng(1)
    held = dict.fromkeys(SHARES[:2], 0)
    trials = 60
    for _ in range(trials):
        # Requests of a round share its drift: they are no independent samples.
        drift = rng.normal(0, 0.05, size=(8, 1))
        values = np.exp(rng.normal(0, 0.2, size=(8, 120)) + drift)
        for share, measured in zip(SHARES[:2], rounds(values), strict=False):
            truth = np.exp({0.5: 0.0, 0.9: 1.2816}[share] * np.hypot(0.2, 0.05))
            held[share] += measured.low <= truth <= measured.high
    assert all(count >= 0.85 * trials for count in held.values()), held


def row(batch, rate, **other):
    settings = {
        "world_size": 1,
        "precision": "fp32",
        "autocast": False,
        "compile": False,
        "status": "done",
    } | other
    return InferenceCase(batch=batch, samples_per_s=None if rate is None else Measured(rate), **settings)


def test_the_knee_is_the_smallest_batch_with_about_all_of_the_throughput():
    rows = [row(1, 100), row(2, 190), row(4, 196), row(8, 200)]
    assert [r.knee for r in _kneed(rows)] == [False, True, False, False]


def test_throughput_that_still_grows_has_no_knee():
    assert not any(r.knee for r in _kneed([row(1, 100), row(2, 150), row(4, 200)]))


def test_every_setting_has_its_own_knee_and_what_was_not_measured_has_none():
    rows = [
        row(1, 100),
        row(8, 200),
        row(1, 50, precision="bf16"),
        row(8, 51, precision="bf16"),
        row(64, None),
    ]
    assert [r.knee for r in _kneed(rows)] == [False, False, True, False, False]
    assert not _kneed([row(1, 100)])[0].knee


def stretches(*places):
    """A request of 8 samples and 10 ms at each (round, rank, arm)."""
    took = {"begin_ns_step": 0, "end_ns_step": 10**7}
    return pl.DataFrame(
        [
            {"launch": 0, "round": r, "rank": rank, "arm": arm, "batch": 8, "steps": 1} | took
            for r, rank, arm in places
        ]
    )


def test_a_round_that_one_rank_did_not_end_counts_for_none():
    """The second rank was killed in round 3: half of the throughput of that round counts for no case."""
    whole = [(r, rank, "throughput") for r in range(3) for rank in range(2)]
    cut = stretches(*whole, (3, 0, "throughput"))
    found = _throughput(whole_rounds(cut, 2), seed=0)
    assert (found.value, found.n) == (pytest.approx(1600.0), 3)
    assert found.low == pytest.approx(1600.0)


def test_a_round_can_be_whole_in_one_arm_and_cut_off_in_the_next():
    rows = stretches((0, 0, "latency"), (0, 1, "latency"), (0, 0, "throughput"))
    assert set(whole_rounds(rows, 2)["arm"]) == {"latency"}
    assert whole_rounds(rows.filter(pl.col("rank") == 0), 2).is_empty()


def test_efficiency_is_against_one_rank_of_the_same_case_and_unknown_without_one():
    rows = [row(4, 100.0, world_size=1), row(4, 150.0, world_size=2), row(8, 300.0, world_size=2)]
    alone, two, lone = _with_efficiency(rows)
    assert alone.efficiency.value == 1
    assert two.efficiency.value == 0.75
    assert lone.efficiency is None
