"""Asynchronous saves to a slow disk: what blocks the loop and what it slows, beside what the loop itself noted."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.measures

SCRIPT = Path(__file__).with_name("save_ranks.py")


def counted(point):
    return {pause.kind: pause for pause in point.pauses}


@pytest.mark.parametrize("name", ["slow", "busy"])
def test_what_a_save_blocks_is_what_the_loop_noted(ranks, found, name):
    (point,) = found(name).points
    save = counted(point)["async save"]
    noted = sum(map(max, *(rank[name]["blocked"] for rank in ranks)))
    assert save.count == len(ranks[0][name]["blocked"])
    assert save.where == "between steps"
    assert save.seconds.value == pytest.approx(noted, rel=0.1)


@pytest.mark.parametrize("name", ["slow", "busy"])
def test_steps_beside_a_save_are_compared_with_the_others(ranks, found, name):
    (point,) = found(name).points
    beside = counted(point)["beside an async save"].steps_beside
    ratio = np.mean([np.mean(r[name]["beside"]) / np.mean(r[name]["apart"]) for r in ranks])
    assert beside.low <= ratio <= beside.high
    if name == "busy":
        assert beside.surely_above(1)


def test_the_figures_are_those_of_steps_apart_from_saves(ranks, found):
    (point,) = found("busy").points
    apart = 1e3 * np.mean([step for rank in ranks for step in rank["busy"]["apart"]])
    assert point.step_ms.value == pytest.approx(apart, rel=0.1)
