"""Whether a remedy held."""

import numpy as np
import pytest

from scaling.analysis.results import Measured, Remedy, Verdict
from scaling.analysis.verdicts.remedies import ALTERNATING, alternating, judge

SAME = Measured(1.0, 0.99, 1.01, 5)


def said(plan, gain, promised=None, same=SAME):
    remedy = Remedy(overrides="ddp.bucket_cap_mb=25", code="", predicted_gain=promised)
    cause = Verdict(cause="link_latency", world_size=4, share=None, confidence="high", evidence=())
    return judge(plan, cause, remedy, gain, same, ALTERNATING).verdict


def test_what_was_promised_and_came_has_held(plan):
    assert said(plan, Measured(1.30, 1.25, 1.35, 5), Measured(1.32, 1.24, 1.40, 5)) == "held"
    assert said(plan, Measured(1.50, 1.45, 1.55, 5), Measured(1.32, 1.24, 1.40, 5)) == "held"  # and more
    assert said(plan, Measured(1.30, 1.25, 1.35, 5)) == "held"  # nothing was promised


def test_less_than_was_promised_has_not(plan):
    assert said(plan, Measured(1.05, 1.03, 1.07, 5), Measured(1.32, 1.24, 1.40, 5)) == "not_held"
    assert said(plan, Measured(0.90, 0.88, 0.92, 5), Measured(1.32, 1.24, 1.40, 5)) == "not_held"


def test_a_gain_within_the_noise_is_neither(plan):
    assert said(plan, Measured(1.02, 0.99, 1.05, 5)) == "not_distinguishable"
    assert (
        said(plan, Measured(1.04, 1.02, 1.06, 5), same=Measured(1.05, 0.9, 1.2, 5)) == "not_distinguishable"
    )
    assert said(plan, Measured(1.30)) == "not_distinguishable"  # no interval
    assert said(plan, None) == "not_distinguishable"


def test_launches_are_compared_in_pairs():
    now, then = np.array([100.0, 104.0, 108.0, 112.0]), np.array([50.0, 52.0, 54.0, 56.0])
    gain, same = alternating(now, then, samples=1.0, seed=0)
    assert (gain.value, gain.low, gain.high) == pytest.approx((2.0, 2.0, 2.0))  # the drift is shared
    assert same.low < 104 / 108 < same.high
    twice, _ = alternating(now, then, samples=2.0, seed=0)
    assert twice.value == pytest.approx(4.0)
