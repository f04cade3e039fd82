"""A real loop whose second rank slows down in the middle: the rank, the phase, and the time of the change."""

import time
from pathlib import Path

import pytest
from worker.probe.drift_ranks import NAP_S, SINCE

from scaling.worker.probe.loop_file import ROUND_STEPS

pytestmark = pytest.mark.measures

SCRIPT = Path(__file__).with_name("drift_ranks.py")
NEAR_MS = 3.0


def test_the_rank_the_phase_and_the_time_of_the_change(found):
    (point,) = found("slows").points
    (drift,) = point.drifts
    assert (drift.ranks, drift.phase) == ((1,), "rollout")
    assert abs(drift.since_step - SINCE) <= 2 * ROUND_STEPS
    assert drift.more_ms.value == pytest.approx(1e3 * NAP_S, abs=NEAR_MS)
    assert drift.step_more_ms.low < 1e3 * NAP_S < drift.step_more_ms.high + NEAR_MS
    assert 0 < time.time() - drift.since_unix_s < 600


def test_a_steady_loop_has_none(found):
    assert found("even").points[0].drifts == ()
