"""What counts as found, as missed, and as a false alarm."""

from dataclasses import replace

import pytest

from scaling.analysis.results import Measured, Straggler, Verdict
from scaling.analysis.selftest.grade import CASES, MODEL_CASES, MORE, _transfer_ms, grade, summary
from scaling.config.compose import requests
from scaling.settings.plan import make_plan


def about(value):
    return Measured(value, value * 0.98, value * 1.02, 4)


def verdict(cause, confidence="high"):
    return Verdict(cause=cause, world_size=2, share=about(0.3), confidence=confidence, evidence=())


@pytest.fixture(scope="module")
def measured(measure, cluster):
    """A simulated run of two ranks."""
    return measure(cluster.Truth(hosts=2, world_sizes=(2,)))


@pytest.fixture
def graded(measured):
    def graded(case, *verdicts, late=None):
        points = tuple(replace(p, straggler=late) for p in measured.analysis.points)
        said = replace(measured.analysis, verdicts=verdicts, points=points)
        return grade(case, said, measured.plan)

    return graded


def late(rank, cost_ms, phase="forward"):
    return Straggler(rank=rank, phase=phase, by_itself=False, cost_ms=about(cost_ms), skew_ms=about(cost_ms))


def case(name):
    return next(c for c in (*CASES, *MORE, *MODEL_CASES) if c.name == name)


def test_the_first_verdict_has_to_be_an_accepted_one(graded):
    slow = case("slow link")
    assert graded(slow, verdict("link_bandwidth"), verdict("link_latency")).hit
    missed = graded(slow, verdict("overlap"), verdict("link_bandwidth"))
    assert not missed.hit
    assert missed.false_alarms == ("overlap",)


def test_a_late_rank_has_to_be_the_right_one(graded):
    first = case("rank 0 late in forward")
    found = graded(first, verdict("straggler"), late=late(0, 24.0))
    assert found.hit
    assert found.error == pytest.approx(-0.04)
    assert not graded(first, verdict("straggler"), late=late(1, 24.0)).hit
    assert not graded(first, verdict("straggler"), late=late(0, 24.0, "input")).hit


def test_any_cause_on_a_control_is_a_false_alarm(graded):
    control = case("control, two hosts")
    assert graded(control, verdict("scales_well")).hit
    assert graded(control).hit
    assert graded(control, verdict("neighbours")).false_alarms == ("neighbours",)


def test_a_false_cause_at_high_confidence_counts_double(graded):
    control = case("control, two hosts")
    unsure, sure = graded(control, verdict("host", "medium")), graded(control, verdict("host"))
    assert (unsure.sure_alarms, sure.sure_alarms) == ((), ("host",))
    assert summary([unsure, sure], planned=2).false_alarms == 1 + 2


def test_small_real_models_may_lose_to_the_link_beside_a_fault(graded):
    fault = case("cnn, rank 0 late in input")
    found = graded(fault, verdict("straggler"), verdict("link_latency"), late=late(0, 41.0, "input"))
    assert found.hit
    assert found.false_alarms == ()
    assert not graded(fault, verdict("input", "low")).hit
    assert graded(case("resnet, control"), verdict("input")).false_alarms == ("input",)


def test_a_hint_is_no_statement(graded):
    control = case("control, two hosts")
    assert graded(control, verdict("scales_well"), verdict("host", "low")).false_alarms == ()


def test_a_crowded_machine_has_to_be_noticed(graded, measured):
    busy = case("busy processes")
    assert not graded(busy, verdict("undecided", "low")).hit
    quality = replace(measured.analysis.quality, warnings=("contended: 9 of 16 compute blocks",))
    said = replace(measured.analysis, quality=quality, verdicts=(verdict("host", "low"),))
    assert grade(busy, said, measured.plan).hit


def test_the_summary_counts_what_could_not_be_run_as_missed(graded):
    found = graded(case("slow link"), verdict("link_bandwidth"))
    assert summary([found], planned=2).hit_rate == 0.5
    assert not summary([found], planned=2).passed
    assert not summary([replace(found, error=0.2)], planned=1).passed
    assert summary([replace(found, error=-0.08)], planned=1).passed
    assert not summary([replace(found, error=0.0, false_alarms=("host",))], planned=1).passed


@pytest.mark.parametrize("injected", [*CASES, *MORE, *MODEL_CASES], ids=lambda c: c.name)
def test_every_case_is_a_run_that_the_config_accepts(injected):
    (asked,) = requests("selftest", injected.settings).items
    assert make_plan(asked.spec, run_id="", created="", version="").ranks == 2


def test_the_arithmetic_of_a_link():
    assert _transfer_ms(4, 500) == pytest.approx(4 * 2**20 * 8 / 500e6 * 1514 / 1448 * 1e3)
