"""Lines of the self-test."""

from dataclasses import replace

from scaling.analysis.results import Measured, SelfTestCase
from scaling.report.documents.checkup import case_lines

CASE = SelfTestCase(
    name="cnn, rank 0 late in input",
    injected="inject.rank=0 inject.input_ms=40",
    accepted=("straggler",),
    first="undecided",
    hit=False,
    false_alarms=(),
    expected_ms=40.0,
    attributed_ms=None,
    error=None,
    step_ms=Measured(70.0, 60.0, 80.0, 4),
)


def test_a_miss_beside_other_programs_says_so():
    assert len(list(case_lines(CASE))) == 1
    _, why = case_lines(replace(CASE, contended=True))
    assert "contended" in why
    assert len(list(case_lines(replace(CASE, contended=True, hit=True)))) == 1
