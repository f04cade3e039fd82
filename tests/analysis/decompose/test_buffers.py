"""A model with BatchNorm: ranks wait for each other in forward too, where DDP broadcasts the buffers."""

from dataclasses import fields, replace

import pytest
from support.expected import MS, SLACK, compared, holds

BUFFERS_MS = 0.8


@pytest.fixture(scope="module")
def truth(cluster):
    """Four ranks without noise of their own; buffers take 0.8 ms."""
    return cluster.Truth(world_sizes=(4,), step_noise=0.0, buffers_ns=BUFFERS_MS * MS, rounds=6, seed=3)


def late(cluster, truth, phase, rank=1, ms=30):
    return replace(truth, stragglers=(cluster.Straggler(rank=rank, phase=phase, extra_ns=ms * MS),))


@pytest.mark.parametrize(("phase", "rank"), [("input", 1), ("host", 0), ("forward", 2)])
def test_the_late_rank_is_named_with_its_phase_and_its_cost(cluster, truth, measure, phase, rank):
    run = measure(late(cluster, truth, phase, rank))
    point, expected = run.point(4), run.expected.points[4]
    assert (point.straggler.rank, point.straggler.phase) == (rank, phase)
    cost = expected.cost_ns[rank] / MS
    assert point.straggler.cost_ms.value == pytest.approx(cost, rel=0.03)
    assert point.loss.straggler.value == pytest.approx(expected.loss["straggler"], abs=0.01)
    assert point.loss.overlap.value == pytest.approx(expected.loss["overlap"], abs=0.01)


@pytest.mark.parametrize("phase", ["", "input"])
def test_every_figure_is_the_truth(cluster, truth, measure, phase):
    run = measure(late(cluster, truth, phase) if phase else truth)
    point, expected = run.point(4), run.expected.points[4]
    off = {
        name: (number and (number.low, number.value, number.high), value)
        for name, (number, value, slack) in compared(point, expected).items()
        if not holds(number, value, slack + SLACK * value)
    }
    assert off == {}
    parts = (getattr(point.parts_ms, each.name) for each in fields(point.parts_ms))
    assert sum(part.value for part in parts if part) == pytest.approx(point.arms_ms.probe.value, rel=0.002)


def test_without_a_late_rank_the_buffers_cost_what_they_take(truth, measure):
    point = measure(truth).point(4)
    assert point.straggler is None
    without = measure(replace(truth, buffers_ns=0.0)).point(4)
    more = point.step_ms.value - without.step_ms.value
    assert more == pytest.approx(BUFFERS_MS, abs=0.3)
    assert point.parts_ms.exposed_transfer.value - without.parts_ms.exposed_transfer.value == pytest.approx(
        BUFFERS_MS, abs=0.3
    )
    assert point.parts_ms.forward.value == pytest.approx(without.parts_ms.forward.value, rel=0.01)
