"""Whether a remedy held."""

import dataclasses

import numpy as np
import pytest

from scaling.analysis.results import Measured, Remedy, Verdict
from scaling.analysis.verdicts.remedies import ALTERNATING, alternating, judge, samples_ratio
from scaling.settings.parallel import REST, Parallel

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


def test_an_upper_bound_is_no_promise(plan):
    bound = Remedy(
        overrides="fsdp.reshard_after_forward=false",
        code="",
        predicted_gain=Measured(1.30, 1.27, 1.33, 5),
        assumes="at most, if nothing takes its place",
    )
    cause = Verdict(cause="link_bandwidth", world_size=4, share=None, confidence="high", evidence=())
    assert judge(plan, cause, bound, Measured(1.12, 1.10, 1.14, 5), SAME, ALTERNATING).verdict == "held"
    assert judge(plan, cause, bound, Measured(0.9, 0.88, 0.92, 5), SAME, ALTERNATING).verdict == "not_held"


def test_a_variant_with_more_groups_of_ranks_has_more_samples(plan):
    """Four ranks that divide the layers train one batch; with DDP they train four."""
    spec = dataclasses.replace(plan.spec, world_sizes=(4,))
    divided = dataclasses.replace(spec, parallel=Parallel(name="tp", replicate=1, shard=1, tensor=REST))
    assert samples_ratio(spec, divided, 4) == 4
    assert samples_ratio(divided, spec, 4) == 0.25


def test_equal_launches_of_which_one_was_slow_differ():
    slow = np.array([100.0, 120.0, 100.0, 100.0])
    _, same = alternating(slow, slow, samples=1.0, seed=0)
    assert same.value == pytest.approx(200 / 220, rel=0.01)


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
    assert same.value == pytest.approx(208 / 216, rel=0.01)  # no launch counts twice
    twice, _ = alternating(now, then, samples=2.0, seed=0)
    assert twice.value == pytest.approx(4.0)
