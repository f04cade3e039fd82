"""The report for a pull request."""

from __future__ import annotations

from scaling.report.markdown import comparison_markdown, markdown


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
