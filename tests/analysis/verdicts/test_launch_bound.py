"""A device that waits for its host's launches."""

from dataclasses import replace

import pytest
from support.results import comm

from scaling.analysis.results import Measured, Point, Remedy, StepParts, Verdict
from scaling.analysis.verdicts.remedies import no_gain
from scaling.analysis.verdicts.verdict import doubted, launch_bound


@pytest.fixture
def plan(cluster):
    return cluster.plan_of(cluster.Truth(channels=1))


def found(plan, starved, half=0.05, enqueue=None):
    known = comm(
        buckets=(),
        host_lead_ms=Measured(0.012),
        starved_share=None if starved is None else Measured(starved, starved - half, starved + half, 8),
    )
    parts = StepParts(exposed_enqueue=enqueue and Measured(enqueue))
    return launch_bound(
        Point(world_size=4, hosts=1, status="done", comm=known, parts_ms=parts), plan, no_gain
    )


def test_it_is_named_with_what_fits(plan):
    (verdict,) = found(plan, 0.97, enqueue=0.3)
    assert (verdict.cause, verdict.share, verdict.confidence) == ("launch_bound", None, "high")
    assert "12 us ahead" in verdict.evidence[0]
    assert "0.3 ms" in verdict.evidence[1]
    assert [r.overrides for r in verdict.try_] == ["batch_per_rank=64", "compile=true", ""]
    assert "CUDA graphs" in verdict.try_[-1].code


def test_a_compiled_model_is_not_told_to_compile(plan):
    compiled = replace(plan, spec=replace(plan.spec, compile=True))
    (verdict,) = found(compiled, 0.8)
    assert verdict.confidence == "medium"
    assert [r.overrides for r in verdict.try_] == ["batch_per_rank=64", ""]


@pytest.mark.parametrize("starved", [None, 0.0, 0.4, 0.52])
def test_a_host_that_is_ahead_at_half_of_the_buckets_is_not(plan, starved):
    assert found(plan, starved) == ()


@pytest.mark.parametrize(
    ("cause", "confidence", "gain"), [("link_bandwidth", "low", None), ("straggler", "high", 1.4)]
)
def test_the_devices_waits_are_doubted_where_the_host_goes_on_meanwhile(cause, confidence, gain):
    remedy = Remedy(overrides="ddp.comm_hook=bf16", code="", predicted_gain=Measured(1.4))
    verdict = Verdict(
        cause=cause, world_size=2, share=Measured(0.1), confidence="high", evidence=("it waits",)
    )
    after = doubted(replace(verdict, try_=(remedy,)))
    assert after.confidence == confidence
    assert (after.try_[0].predicted_gain and after.try_[0].predicted_gain.value) == gain
    assert after.evidence[0] == "it waits"
