"""Many ranks as a distribution and its slowest, in every report."""

import io
from dataclasses import replace

import pytest
from rich.console import Console
from support.reports import as_text, page, print_analysis, print_comparison

from scaling.analysis.results import Fabric, HostSteps, Measured, OwnStep, RankSpread
from scaling.plain import plain
from scaling.report.tracking import tables


def printed(show, *args, encoding="utf-8", **settings):
    """What a show prints to a pipe of 80 columns."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    console = Console(file=file, width=80)
    show(console, *args, **settings)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture
def good(sample):
    return printed(print_analysis, sample.good(), sample.plan(), report_path="runs/a/report.html")


@pytest.fixture
def bad(sample):
    return printed(print_analysis, sample.bad(), sample.bad_plan())


def row(out, name):
    """The row of a name below the first five lines."""
    below = out.partition("\n#")[2]
    return next(line for line in below.splitlines() if line.strip().startswith(name))


def test_nothing_is_wider_than_80_columns_or_coloured(good, bad, sample):
    compared = [printed(print_comparison, sample.comparison(comparable=c)) for c in (True, False)]
    for out in (good, bad, *compared):
        assert max(map(len, out.splitlines())) <= 80
        assert "\x1b" not in out


def test_the_key_figures_stand_under_a_name_and_a_unit(good):
    lines = good.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("#ranks"))
    assert lines[at + 1].split() == ["#", "ms", "1/s", "%", "ms", "ms", "Gbit/s", "GB/s"]
    assert lines[at + 4].split()[:3] == ["4", "4", "139.6"]
    assert "57.4 ±1.2" in lines[at + 4]
    assert "status" not in lines[at]


def test_a_report_leads_with_five_lines_and_can_be_nothing_else(sample, good):
    page = "runs/a/report.html"
    short = printed(print_analysis, sample.good(), sample.plan(), report_path=page, verbose=False)
    names = [line.split("  ")[0] for line in short.splitlines() if not line.startswith(" ")]
    assert names == ["answer", "why", "how sure", "try", "page"]
    assert good.startswith(short)
    said = " ".join(short.split())
    assert "answer highmem_cnn on emulated_pcie: At 4 ranks the run keeps 57.4 %" in said
    assert "ddp.comm_hook=bf16" in said
    assert short.splitlines()[-1] == f"page      {page}"


def test_failures_injections_and_warnings_are_among_the_five_lines(sample):
    short = printed(print_analysis, sample.bad(), sample.bad_plan(), verbose=False)
    said = " ".join(short.split())
    for word in ("SYNTHETIC", "INJECTED", "failed on rank 3: RuntimeError", "1 warning"):
        assert word in said
    assert "page" not in [line.split(" ")[0] for line in short.splitlines()]


def test_the_waterfall_runs_from_ideal_to_measured(good):
    assert row(good, "ideal").count("█") > row(good, "measured").count("█") > 20
    assert "29.2 ±0.7" in row(good, "link bandwidth")
    assert "[-0.4, 3.0]" in row(good, "unexplained")
    assert not [line for line in good.splitlines() if line.strip().startswith("clocks")]


def test_a_cause_without_a_number_is_left_out_but_unexplained_is_not(bad):
    assert row(bad, "unexplained").split()[:2] == ["unexplained", "-"]
    assert "21 [12, 24]" in row(bad, "straggler")


def test_parts_overhead_fabric_and_verdicts_are_there(good):
    assert "36.9 ±0.9" in row(good, "exposed transfer")
    assert "+0.3 % ±0.4 of the plain step" in row(good, "probe's cost")
    assert "alpha 120 us ±6 a hop, busbw 0.183 Gbit/s ±0.002" in good
    assert "Link bandwidth, 38.3 % ±0.7 of the step at 4 ranks (confidence high)" in good
    assert "try  ddp.comm_hook=bf16: +19 % ±2 throughput predicted" in good
    assert good.splitlines()[-1] == "# report  runs/a/report.html"


def test_trouble_is_told(bad):
    assert "4 ranks: failed on rank 3: RuntimeError" in bad
    assert "7 points wide" in bad
    assert "rank 1 is late in forward" in bad
    assert "SYNTHETIC" in bad
    assert "INJECTED" in bad
    assert row(bad, "2 ").endswith("stopped")
    assert row(bad, "4 ").split() == ["4", "4", *"-------", "failed"]


def test_a_run_without_any_result_still_prints(sample):
    nothing = replace(sample.bad(), points=(), verdicts=(), fabric=Fabric())
    assert "Nothing could be measured." in " ".join(printed(print_analysis, nothing, sample.plan()).split())


def test_a_console_of_plain_ascii_gets_plain_ascii(sample):
    out = printed(print_analysis, sample.good(), sample.plan(), encoding="ascii")
    assert "66.1 +-1.2" in out
    assert "####" in row(out, "ideal")


def test_colour_adds_nothing(sample, good):
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, color_system="standard")
    print_analysis(console, sample.good(), sample.plan(), report_path="runs/a/report.html")
    assert "\x1b[" in out.getvalue()
    assert plain(out.getvalue()) == good


def test_a_comparison(sample):
    out = printed(print_comparison, sample.comparison())
    assert row(out, "1 rank").endswith("not distinguishable")
    assert "1.36 [1.33, 1.42]" in row(out, "2 ranks")
    assert "-31.0 ms ±1.1 a step" in row(out, "link bandwidth")
    assert "NOT COMPARABLE" not in out
    said = " ".join(out.split())
    assert "x1.36 = x1.01 ±0.02 compute x x1.34 ±0.04 fabric x x1.00 ±0.04 left" in said
    assert "3.82 USD ±0.05 a million samples, base 2.60 USD ±0.02: x0.680 ±0.010 the samples a dollar" in said
    assert "1.90 ±0.10 samples a joule, base -" in said
    assert "- torch: 2.13.0 and -" in out


def test_a_comparison_of_unlike_runs(sample):
    out = printed(print_comparison, sample.comparison(comparable=False))
    assert "# NOT COMPARABLE" in out
    assert "- precision differs: fp32, bf16" in out


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
    return as_text(replace(sample.good(), ranks=ranks), sample.plan()).values()


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


def test_wandb_has_the_slowest(sample):
    found = tables.tables(replace(sample.good(), ranks=spread()))
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
