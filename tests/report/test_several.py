"""Several runs against one base: what is said of them, and shown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scaling.analysis.results import CaseComparison, Measured
from scaling.report import versus
from scaling.report.cases import comparison_table
from scaling.report.html import comparison_page, comparisons_page
from scaling.report.markdown import comparison_markdown

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


def at_four(sample, *ratios: tuple[Measured, bool]):
    """A comparison a ratio, all at 4 ranks."""
    first = sample.comparison()
    point = first.points[-1]
    return [replace(first, points=(replace(point, ratio=r, distinguishable=d),)) for r, d in ratios]


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        (
            [(1.5, 0.1, True), (1.3, 0.05, True)],
            "b is the fastest: 1.50 ±0.10 times the throughput of a.",
        ),
        (
            [(1.4, 0.2, True), (1.5, 0.2, True)],
            "c has the largest ratio, 1.5 ±0.2 times the throughput of a, not told from b.",
        ),
        (
            [(1.5, 0.1, True), (1.2, None, False)],
            "b has the largest ratio, 1.50 ±0.10 times the throughput of a, not told from c.",
        ),
        (
            [(1.5, 0.1, True), (1.8, 0.9, False)],
            "b is faster, 1.50 ±0.10 times the throughput of a, not told from c.",
        ),
        ([(0.8, 0.1, True), (1.0, 0.1, False)], "none of the others is distinguishably faster than a."),
        ([(0.9, 0.2, False), (1.0, 0.1, False)], "none of these runs is distinguishable from a."),
        (
            [(2.9, None, False), (1.0, 0.1, False)],
            "none of the runs with an interval is distinguishable from a; too few rounds for one: b.",
        ),
        (
            [(2.9, None, False), (0.8, 0.1, True)],
            "none of the runs with an interval is distinguishably faster than a; too few rounds for one: b.",
        ),
        (
            [(2.9, None, False), (1.1, None, False)],
            "the throughput ratios are from too few rounds for an interval: measure longer.",
        ),
    ],
)
def test_one_is_the_fastest_only_where_it_is_told_from_all_others(sample, ratios, said):
    found = [(Measured(v, n=2) if half is None else sample.about(v, half), d) for v, half, d in ratios]
    assert versus.answer_of_several(at_four(sample, *found), NAMES) == f"At 4 ranks {said}"


def test_the_fastest_is_told_beyond_what_the_machine_moved_between_the_runs(sample):
    """b is 1.20 of a on a machine that was 1.10 as fast meanwhile, c 1.12 on one that was the same."""
    ratios = [(sample.about(1.2, 0.01), True), (sample.about(1.12, 0.01), True)]
    steady = at_four(sample, *ratios)
    moved = [
        replace(one, points=(replace(one.points[0], control=Measured(control, n=8)),))
        for one, control in zip(steady, (1.1, 1.0), strict=True)
    ]
    assert "b is the fastest" in versus.answer_of_several(steady, NAMES)
    assert "b has the largest ratio" in versus.answer_of_several(moved, NAMES)
    assert "not told from c" in versus.answer_of_several(moved, NAMES)


def test_every_renderer_says_that_a_ratio_has_no_interval(sample):
    bare = (Measured(2.97, n=2), False)
    (one,) = at_four(sample, bare)
    by_case = replace(one, cases=(case(bare[0], distinguishable=False),))
    pages = (
        comparison_page(one, sample.good(), sample.other()),
        comparisons_page([one], sample.good(), [sample.other()]),
        comparison_markdown([one]),
        str(comparison_table(by_case)),
    )
    for page in pages:
        assert "no interval" in page
        assert "not distinguishable" not in page
