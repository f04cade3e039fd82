"""Clusters drawn at random through the whole analysis: nothing that cannot be, and intervals that hold the truth.

`SCALING_CLUSTERS=500 pytest tests/analysis/test_random_clusters.py -s` prints the coverage and the median width.
"""

from __future__ import annotations

import os
from collections import Counter
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.expected import compared, holds
from support.possible import assert_possible
from support.random_clusters import random_truth

COUNT = int(os.environ.get("SCALING_CLUSTERS", "24"))
HELD = 0.9
WIDTHS = {"efficiency": 0.06, "step": 0.08}
"""Largest median length of an interval over the value. With 4 to 8 rounds of up to 3 % noise."""


def assert_sound(run):
    """Nothing was left out of records in which nothing is wrong, and nothing came out that cannot be."""
    assert run.tables.dropped_blocks == 0, run.tables.gaps
    assert_possible(run.analysis)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_a_small_cluster_gives_nothing_that_cannot_be(measure, seed):
    assert_sound(measure(random_truth(seed, most=6)))


@pytest.mark.slow
def test_intervals_of_random_clusters_hold_the_truth(measure, capsys):
    """The truth is that without noise, so clusters whose steps have noise of their own only have to be sound."""
    held: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    widths: dict[str, list[float]] = {name: [] for name in WIDTHS}
    for seed in range(COUNT):
        truth = random_truth(seed)
        run = measure(truth)
        assert_sound(run)
        point = run.analysis.points[-1]
        if truth.step_noise:
            continue
        expected = run.expected.points[point.world_size]
        for name, (number, value, slack) in compared(point, expected).items():
            asked[name] += 1
            held[name] += holds(number, value, slack) if number and number.interval else number is None
            if name in widths and number and number.half_width:
                widths[name].append(2 * number.half_width / number.value)
    shares = {name: held[name] / asked[name] for name in asked}
    overall = sum(held.values()) / sum(asked.values())
    middles = {name: median(found) for name, found in widths.items()}
    with capsys.disabled():
        print(
            f"\n{COUNT} clusters: {overall:.1%} of {sum(asked.values())} intervals hold the truth; median length "
            + ", ".join(f"of {name} {width:.1%}" for name, width in middles.items())
        )
        print(
            ", ".join(
                f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda item: item[1])
            )
        )
    assert overall >= HELD
    assert {name: width for name, width in middles.items() if width > WIDTHS[name]} == {}
