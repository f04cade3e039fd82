"""The report for a pull request.

Several runs as one table: what is said of them, and shown.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.reports import comparison_markdown, comparison_page, markdown, sweep_page

from scaling.analysis.results import Measured, Sweep, SweepBest, SweepRow
from scaling.report.cases import comparison_table
from scaling.report.documents.comparison import answer, table
from scaling.report.markdown import sweep_markdown


def test_the_answer_and_the_tables(sample):
    said = markdown(sample.good(), sample.plan())
    lines = said.splitlines()
    assert lines[0] == r"## highmem\_cnn on emulated\_pcie"
    assert lines[2].startswith("**At 4 ranks the run keeps 57.4 % ±1.2 of ideal;")
    head = next(i for i, line in enumerate(lines) if line.startswith("| ranks |"))
    assert lines[head].count("|") == lines[head + 1].count("|") == lines[head + 2].count("|")
    assert lines[head + 4].startswith("| 4 | 4 | 139.6 ±1.4 |")
    assert said.count("```") == 2
    assert "  measured           57.4 ±1.2" in said
    assert "try `ddp.comm_hook=bf16`: +19 % ±2 throughput predicted" in said


def test_trouble_is_told_and_nothing_breaks_out(sample):
    said = markdown(sample.bad(), sample.bad_plan())
    assert "<script>" not in said.replace(r"\<script\>", "")
    assert "> - 4 ranks: failed on rank 3" in said
    assert "> - the interval of the efficiency is 7 points wide" in said
    assert "SYNTHETIC" in said
    assert "\x1b" not in said


def test_a_comparison(sample):
    said = comparison_markdown(sample.comparison())
    assert r"## emulated\_nvlink against emulated\_pcie" in said
    assert "| 2 | 1.36 [1.33, 1.42] |" in said.replace("\\", "")
    assert "not distinguishable" in said
    assert "link bandwidth -31.0 ±1.1" in said


def row(
    sample, batch: int, n: int, rate: float, speedup: float | None = None, half: float = 0.02
) -> SweepRow:
    """A row of a sweep over batch_per_rank."""
    return SweepRow(
        run=0,
        world_size=n,
        name=f"batch_per_rank={batch}",
        settings={"batch_per_rank": str(batch)},
        batch=batch,
        status="done",
        samples_per_s=sample.about(rate, rate / 50),
        speedup=None if speedup is None else sample.about(speedup, half),
        efficiency=sample.about((speedup or 1.0) / n, half / n),
        cause="link_bandwidth" if n > 1 else None,
        share=sample.about(0.7, 0.02) if n > 1 else None,
        confidence="high" if n > 1 else None,
    )


def swept(*rows: SweepRow, best: tuple[SweepBest, ...] = (), contended: tuple[str, ...] = ()) -> Sweep:
    names = tuple(dict.fromkeys(one.name for one in rows))
    return Sweep(names=names, keys=("batch_per_rank",), rows=rows, best=best, contended=contended)


@pytest.fixture
def batches(sample):
    """Two batches at one and two ranks; the small one loses by its second rank."""
    rows = (
        row(sample, 4, 1, 300),
        row(sample, 4, 2, 150, 0.5),
        row(sample, 64, 1, 800),
        row(sample, 64, 2, 1300, 1.6),
    )
    return swept(*rows, best=(SweepBest(row=3, rivals=()),))


def test_a_table_has_the_settings_that_differ_and_a_row_for_each_world_size(batches):
    found = table(batches)
    assert [name for name, _ in found.columns] == [
        "batch_per_rank",
        "ranks",
        "samples",
        "efficiency",
        "cause",
    ]
    assert found.rows[1] == ("4", "2", "150 ±3", "25.0 ±1.0", "link bandwidth 70 %")
    assert found.rows[0][-1] == "-"


def test_what_is_best_and_what_is_slower_than_one_rank_is_said_outright(batches):
    assert answer(batches) == (
        "The most samples a second, 1300 ±26, come with batch_per_rank=64 at 2 ranks (efficiency 80.0 % ±1.0). "
        "A larger batch takes fewer optimizer steps for the same samples. "
        "2 ranks are slower than 1 with batch_per_rank=4: 0.50 ±0.02 times its samples a second."
    )


def test_models_that_differ_have_a_best_row_each_and_why_is_said(sample):
    rows = [
        replace(row(sample, 4, n, 100 * n * k), name=f"model={name}")
        for k, name in ((1, "gpt2"), (9, "mlp"))
        for n in (1, 2)
    ]
    both = tuple(SweepBest(row=k, rivals=()) for k in (1, 3))
    said = answer(replace(swept(*rows, best=both), keys=("model",)))
    assert said.startswith(
        "Samples of different models or tasks, and simulated ones beside measured ones, are not compared, so each kind "
        "has a best row of its own. "
        "The most samples a second, 200 ±4, come with model=gpt2 at 2 ranks"
    )
    assert "are not compared" not in answer(replace(swept(*rows, best=both[:1]), keys=("model",)))


def test_ranks_that_may_be_as_fast_as_one_are_not_called_slower(sample):
    assert "slower" not in answer(swept(row(sample, 4, 1, 300), row(sample, 4, 2, 297, 0.99)))


def test_every_row_slower_than_one_rank_is_one_sentence(sample):
    rows = [
        row(sample, b, n, 100 * b, None if n == 1 else 0.4 + b / 100) for b in (4, 16, 32) for n in (1, 2)
    ]
    assert answer(swept(*rows)).endswith(
        "2 ranks are slower than 1 in every row: 0.44 to 0.72 times its samples a second."
    )
    alike = [row(sample, b, n, 100 * b, None if n == 1 else 0.5) for b in (4, 16) for n in (1, 2)]
    assert answer(swept(*alike)).endswith("in every row: 0.50 times its samples a second.")


def test_rows_that_cannot_be_told_from_the_best_are_named(batches):
    unsure = replace(batches, best=(SweepBest(row=3, rivals=(0, 2)),))
    assert "; not told from batch_per_rank=4 at 1 rank and batch_per_rank=64 at 1 rank" in answer(unsure)


def test_a_contended_run_makes_the_answer_a_hint(batches):
    said = answer(replace(batches, contended=("batch_per_rank=4: others ran",)))
    assert said.endswith("A run was contended, so this is a hint and not a finding.")


def test_one_table_is_on_every_renderer(batches, sample):
    runs = [sample.good(), replace(sample.other(), run=replace(sample.other().run, id="x"))]
    unlike = replace(sample.comparison(comparable=False), other=runs[1].run)
    page, text = sweep_page(batches, [unlike], runs), sweep_markdown(batches, [unlike], runs)
    for shown in (page, text):
        assert "link bandwidth 70" in shown
        assert "other over base" not in shown


def test_every_renderer_says_that_a_ratio_has_no_interval(sample):
    bare = (Measured(2.97, n=2), False)
    first = sample.comparison()
    point = replace(first.points[-1], ratio=bare[0], distinguishable=bare[1])
    one = replace(first, points=(point,))
    rates = (Measured(700.0, 690.0, 710.0, 6), Measured(1400.0, 1380.0, 1420.0, 6))
    case = sample.compared_case(bare[0], samples_per_s=rates, distinguishable=False)
    by_case = replace(one, cases=(case,))
    pages = (
        comparison_page(one, sample.good(), sample.other()),
        comparison_markdown(one),
        str(comparison_table(by_case)),
    )
    for page in pages:
        assert "no interval" in page
        assert "not distinguishable" not in page
