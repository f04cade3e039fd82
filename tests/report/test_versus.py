from dataclasses import replace

from scaling.analysis.results import Measured
from scaling.report import side_by_side


def test_a_comparison_names_what_differs(sample):
    assert side_by_side.run_names(sample.comparison()) == ("emulated_pcie", "emulated_nvlink")
    assert side_by_side.answer(sample.comparison()) == (
        "At 4 ranks emulated_nvlink is faster than emulated_pcie: 1.52 ±0.03 times its throughput."
    )


def test_a_comparison_within_the_noise_says_so(sample):
    near = sample.comparison()
    answer = side_by_side.answer(replace(near, points=near.points[:1]))
    assert answer == "At 1 rank the two runs are not distinguishable: their throughput ratio is 1.002 ±0.009."


def test_a_ratio_without_an_interval_is_no_answer(sample):
    near = sample.comparison()
    few = replace(near.points[1], ratio=Measured(2.97, n=2), distinguishable=False)
    answer = side_by_side.answer(replace(near, points=(few,)))
    assert answer.endswith(
        "the throughput ratio is 2.97, from too few rounds for an interval: measure longer."
    )


def test_runs_that_are_not_comparable(sample):
    assert "not comparable: precision differs" in side_by_side.answer(sample.comparison(comparable=False))


def test_the_largest_causes_come_first_whichever_their_sign(sample):
    causes = side_by_side.largest_causes(sample.comparison().points[1].causes, 2)
    assert [cause for cause, _ in causes] == ["link_bandwidth", "overlap"]
