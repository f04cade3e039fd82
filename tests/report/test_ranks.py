"""Many ranks as a distribution and its slowest, in every report."""

from __future__ import annotations

import io
from dataclasses import replace
from html import unescape

import pytest
from rich.console import Console

from scaling.analysis.results import HostSteps, Measured, OwnStep, RankSpread
from scaling.report.html import page
from scaling.report.markdown import markdown
from scaling.report.terminal import print_analysis
from scaling.report.tracking import tables


def own(rank, ratio, *, slow=False):
    step = Measured(40 * ratio, 40 * ratio - 0.2, 40 * ratio + 0.2, 6)
    return OwnStep(rank=rank, step_ms=step, ratio=Measured(ratio, ratio - 0.005, ratio + 0.005, 6), slow=slow)


def spread(hostname="node-171.cluster"):
    return RankSpread(
        world_size=4096,
        least_ms=39.5,
        p5_ms=39.8,
        median_ms=40.0,
        p95_ms=40.2,
        most_ms=55.0,
        slow=1,
        edges_ms=(39.5, 47.25, 55.0),
        counts=(4095, 1),
        hosts=(
            HostSteps(
                host=171,
                hostname=hostname,
                ranks=8,
                ratio=1.05,
                slowest=(own(1370, 1.375, slow=True), own(1371, 1.01)),
            ),
            HostSteps(host=3, hostname="node-3", ranks=8, ratio=1.0, slowest=(own(25, 1.009),)),
        ),
    )


SAID = (
    "The own steps of 4096 ranks take 40.0 ms in the median, 90 % of them 39.8 to 40.2 ms, "
    "all of them 39.5 to 55.0 ms.",
    "1 rank is slower by more than chance, rank 1370 on host 171 node-171 most.",
)


def shown(sample, ranks):
    analysis, plan = replace(sample.good(), ranks=ranks), sample.plan()
    terminal = io.StringIO()
    print_analysis(Console(file=terminal, width=80, no_color=True), analysis, plan)
    assert max(map(len, terminal.getvalue().splitlines())) <= 80
    texts = (
        terminal.getvalue(),
        unescape(page(analysis, plan, ())).replace("\N{NO-BREAK SPACE}", " "),
        markdown(analysis, plan),
    )
    return [" ".join(text.split()) for text in texts]


def test_every_report_says_the_same(sample):
    for text in shown(sample, spread()):
        assert all(line in text for line in SAID)
        assert "1370 slow" in text
        assert "1.375 ±0.005" in text


def test_where_none_is_slow_that_is_said(sample):
    for text in shown(sample, replace(spread(), slow=0)):
        assert "No rank is slower by itself than the median rank by more than chance." in text


def test_few_ranks_have_no_section(sample):
    assert not any("own steps of" in text for text in shown(sample, None))


def test_a_name_that_tries_to_break_out_is_harmless(sample):
    text = page(replace(sample.good(), ranks=spread(sample.HOSTILE)), sample.plan(), ())
    assert "<script>alert" not in text


def test_wandb_has_the_distribution_and_the_slowest(sample):
    found = tables.tables(replace(sample.good(), ranks=spread()))
    assert found["ranks"]["rows"] == [[39.5, 47.25, 4095], [47.25, 55.0, 1]]
    rows = [
        dict(zip(found["slowest_ranks"]["columns"], row, strict=True))
        for row in found["slowest_ranks"]["rows"]
    ]
    assert [(row["host"], row["rank"], row["slow"]) for row in rows] == [
        (171, 1370, 1),
        (171, 1371, 0),
        (3, 25, 0),
    ]
    assert rows[0]["ratio"] == pytest.approx(1.375)
