"""Several runs against one base: what is said of them, and shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.analysis.results import CaseComparison, Measured
from scaling.report import versus
from scaling.report.compared import comparisons_page

NAMES = ("a", "b", "c")


def case(ratio: Measured | None, batch: int = 8, *, distinguishable: bool = True) -> CaseComparison:
    """One case of inference in bf16."""
    return CaseComparison(
        world_size=2,
        batch=batch,
        setting={"precision": "bf16", "autocast": True, "compile": False},
        samples_per_s=(Measured(700.0, 690.0, 710.0, 6), Measured(1400.0, 1380.0, 1420.0, 6)),
        ratio=ratio,
        distinguishable=distinguishable,
    )


@pytest.fixture
def by_cases(sample):
    """Two comparisons that have cases and no points."""
    one, two = case(sample.about(2.0, 0.05)), case(sample.about(0.5, 0.05), batch=32)
    compared = replace(sample.comparison(), points=())
    return [replace(compared, cases=(one,)), replace(compared, cases=(one, two))]


def test_runs_by_cases_are_answered_case_by_case(by_cases):
    assert versus.answer_of_several(by_cases, NAMES) == (
        "b gives 2.00 times the samples a second of a in 1 case, 1 of them distinguishable. "
        "c gives 0.500 to 2.00 times the samples a second of a in 2 cases, 2 of them distinguishable."
    )


def test_the_page_of_several_runs_has_a_table_of_cases_a_run(by_cases, sample):
    third = replace(sample.good(), run=sample.run_info(precision="bf16", id="x"))
    empty = [replace(run, points=()) for run in (sample.good(), sample.other(), third)]
    page = comparisons_page(by_cases, empty[0], empty[1:])
    assert "no world size in common" not in page
    assert page.count("bf16, autocast") == 3
    unlike = [by_cases[0], replace(by_cases[1], comparable=False, reasons=("the model differs",))]
    assert comparisons_page(unlike, empty[0], empty[1:]).count("bf16, autocast") == 1
