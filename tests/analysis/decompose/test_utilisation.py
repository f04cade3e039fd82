"""MFU, HFU and tokens a second beside the measured steps."""

from __future__ import annotations

import pytest
from support.roofline import of, op

from scaling.analysis.decompose.roofline import with_tokens, with_utilisation
from scaling.analysis.results import Measured, Point

POINTS = (
    Point(
        world_size=1,
        hosts=1,
        status="done",
        step_ms=Measured(20.0, 19.0, 21.0, 5),
        samples_per_s=Measured(400.0),
    ),
    Point(world_size=2, hosts=2, status="done", step_ms=Measured(40.0)),
    Point(world_size=4, hosts=4, status="failed"),
)


def test_a_point_has_the_share_of_the_peak_with_its_interval():
    found = with_utilisation(POINTS, of(op(flops=10**10), recomputed_flops=2 * 10**9), {1, 2, 4})
    assert found[0].hfu.value == pytest.approx(0.5)
    assert found[0].mfu.value == pytest.approx(0.4)
    assert found[0].mfu.low == pytest.approx(0.4 * 20 / 21)
    assert found[1].hfu.value == pytest.approx(0.25)
    assert found[2].mfu is None


def test_a_point_with_another_batch_has_none():
    found = with_utilisation(POINTS, of(op(flops=10**10)), {2})
    assert [p.mfu is None for p in found] == [True, False, True]
    assert with_utilisation(POINTS, None, {1, 2}) == POINTS


def test_tokens_stand_where_samples_do():
    found = with_tokens(POINTS, 1024)
    assert found[0].tokens_per_s == Measured(400.0 * 1024)
    assert found[1].tokens_per_s is None
