"""A rank's step alone, and what ranks cost each other, from a run's arms."""

from __future__ import annotations

import pytest

from scaling.analysis.results import ArmTimes, Loss, Measured, Point
from scaling.analysis.simulate import arms


def at(world_size, bare_one, plain, neighbours):
    return Point(
        world_size=world_size,
        hosts=1,
        status="done",
        arms_ms=ArmTimes(bare_one=Measured(bare_one), plain=Measured(plain)),
        loss=Loss(neighbours=neighbours),
    )


POINTS = [at(1, 98.0, 100.0, None), at(2, 102.0, 204.0, Measured(0.02, 0.01, 0.03))]


def test_the_step_alone_is_that_of_all_world_sizes():
    assert arms.alone_ns(POINTS) == pytest.approx(100e6)
    assert arms.alone_ns([]) is None


def test_neighbours_are_the_waterfalls_over_the_step_alone():
    found = arms.neighbours(POINTS)
    assert (found.value, found.low, found.high) == pytest.approx((0.04, 0.02, 0.06))


def test_one_rank_has_no_neighbours():
    assert arms.neighbours(POINTS[:1]) is None
