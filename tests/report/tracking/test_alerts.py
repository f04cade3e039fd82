"""When an alert is sent of runs that were compared, and what it says."""

from __future__ import annotations

from dataclasses import replace

from scaling.analysis.results import CaseComparison
from scaling.report.tracking.wandb import regressions

SAID = "Throughput of emulated_nvlink over emulated_pcie: "


def test_a_regression_names_the_world_sizes_that_are_slower(sample):
    """And no other: at the largest the run is faster."""
    one = sample.comparison()
    slower = replace(one.points[1], ratio=sample.about(0.8, 0.03))
    (alert,) = regressions([replace(one, points=(one.points[0], slower, one.points[2]))])
    assert alert["text"] == f"{SAID}0.80 ±0.03 at 2 ranks."


def test_a_regression_in_a_case_is_one(sample):
    def case(batch: int, ratio: float, *, distinguishable: bool = True) -> CaseComparison:
        return CaseComparison(
            world_size=2,
            batch=batch,
            setting={"precision": "bf16", "autocast": True, "compile": False},
            samples_per_s=(None, None),
            ratio=sample.about(ratio, 0.03),
            distinguishable=distinguishable,
        )

    one = replace(sample.comparison(), points=())
    found = (case(8, 0.8), case(16, 1.2), case(32, 0.98, distinguishable=False))
    (alert,) = regressions([replace(one, cases=found)])
    assert alert["text"] == f"{SAID}0.80 ±0.03 at 2 ranks, bf16, autocast, batch 8."
    assert list(regressions([replace(one, cases=found[1:])])) == []


def test_runs_that_are_not_comparable_are_no_regression(sample):
    one = sample.comparison(comparable=False)
    slower = replace(one.points[1], ratio=sample.about(0.8, 0.03))
    assert list(regressions([replace(one, points=(slower,))])) == []
