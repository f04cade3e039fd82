"""What a late rank costs is what it is late, and where ranks share cores how much longer the step takes with it."""

import itertools
import os

import pytest
from support.benchmark_parts import benchmark_part


@pytest.fixture(scope="module")
def sharded():
    return benchmark_part("truth_parts.sharded")


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def measured(value, half):
    return {"value": value, "low": value - half, "high": value + half, "n": 6}


def cells(sharded, hosts):
    """A cell without the late rank and with it."""
    asked = [c for c in sharded.cells() if (c.where, c.strategy, c.hosts) == ("links", "hsdp", hosts)]
    late = next(c for c in asked if c.late_ms)
    return next(c for c in asked if not c.late_ms and c.rate == late.rate), late


def point(sharded, cell, *, step, cost):
    """What a run of the cell finds."""
    collectives = [
        {"kind": e.kind, "phase": e.phase, "communicator": e.axis, "bytes": e.bytes}
        | {"transfer_ms": measured(e.transfer_ms or 1.0, 0.1)}
        for e in sharded.expected(cell)
    ]
    return {
        "comm": {"collectives": collectives},
        "straggler": {"rank": 1, "phase": "forward", "cost_ms": cost},
        "loss": {"unexplained": None},
        "closure": measured(1.0, 0.01),
        "overhead": {"aa_floor": measured(1.0, 0.01)},
        "step_ms": step,
    }


def judged(sharded, cell, cost_ms, *, step_ms=256.5):
    late = point(sharded, cell, step=measured(step_ms, 2.75), cost=measured(cost_ms, 5.4))
    return sharded.judge(cell, late, 0, measured(245.2, 5.0))


@pytest.mark.usefixtures("two_cores")
def test_eight_ranks_on_two_cores_are_held_against_the_step_without_the_late_rank(sharded):
    _, late = cells(sharded, 4)
    row = judged(sharded, late, 13.3)
    assert row.truth_ms == pytest.approx(11.3)
    assert row.room_ms == pytest.approx((5.0**2 + 2.75**2 + 5.4**2) ** 0.5)
    (name,) = (name for name in sharded.bars([row]) if "pair's interval" in name)
    assert sharded.bars([row])[name] == (0.0, 0.05, True)
    wrong = judged(sharded, late, 30.0)  # what was injected is not what it costs there
    assert sharded.bars([wrong])[name][2] is False


@pytest.mark.usefixtures("two_cores")
def test_without_the_pair_nothing_is_said_of_its_cost(sharded):
    _, late = cells(sharded, 4)
    row = sharded.judge(late, point(sharded, late, step=measured(256.5, 2), cost=measured(13.3, 5)), 0)
    assert row.truth_ms is None
    assert not [name for name in sharded.bars([row]) if "cost" in name]


@pytest.mark.usefixtures("two_cores")
def test_a_pair_that_is_known_less_well_than_what_is_injected_meets_no_bar(sharded):
    _, late = cells(sharded, 4)
    noisy = point(sharded, late, step=measured(233.5, 50.0), cost=measured(0.0, 5.0))
    row = sharded.judge(late, noisy, 1, measured(245.2, 5.0))
    assert not [name for name in sharded.bars([row]) if "cost" in name]


@pytest.mark.usefixtures("two_cores")
def test_two_ranks_a_core_are_still_held_against_what_was_injected(sharded):
    _, late = cells(sharded, 2)
    assert judged(sharded, late, 31.8).truth_ms == 30.0


def test_ranks_with_cores_of_their_own_are_held_against_what_was_injected(sharded, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    _, late = cells(sharded, 4)
    row = judged(sharded, late, 30.3)
    assert row.truth_ms == late.late_ms == 30.0
    assert sharded.bars([row])["sharded, links: late rank's cost, pooled bias"][0] == pytest.approx(0.01)


def test_a_cell_with_a_late_rank_follows_the_same_one_without_it(sharded):
    asked = sharded.cells()
    for before, cell in itertools.pairwise(asked):
        if cell.late_ms:
            assert (before.where, before.strategy, before.hosts, before.rate, before.late_ms) == (
                *(cell.where, cell.strategy, cell.hosts, cell.rate),
                0.0,
            )
