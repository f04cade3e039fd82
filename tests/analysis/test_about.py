"""What is said of how well the efficiency is known."""

import pytest


def reached(measure, cluster, **truth):
    return measure(cluster.Truth(world_sizes=(1, 2), steps=4, **truth)).analysis


@pytest.fixture(scope="module")
def wild(measure, cluster):
    """Three rounds in which other programs took most of the processor at times."""
    return reached(measure, cluster, rounds=3, block_noise=1.5, seed=3)


def test_quiet_rounds_say_how_many_more_would_do(measure, cluster):
    (line,) = reached(measure, cluster, rounds=4, block_noise=0.05).quality.reached
    assert "points from 4 rounds; ±" in line
    assert "would take about" in line


def test_uneven_rounds_make_no_promise(wild):
    (line,) = wild.quality.reached
    assert line == "efficiency at 2 ranks is unknown: 3 rounds were too few or too uneven"


def test_a_half_width_far_from_any_target_makes_no_promise_of_rounds(measure, cluster):
    (line,) = reached(measure, cluster, rounds=3, block_noise=0.35, seed=1).quality.reached
    assert line.endswith("points from 3 rounds, too uneven to say how many would do")


def test_uneven_rounds_decide_nothing(wild):
    assert {v.cause for v in wild.verdicts if v.world_size == 2} == {"undecided"}
