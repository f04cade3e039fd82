"""One figure reads the same wherever it is shown: terminal, page, Markdown, W&B and analysis.json."""

from __future__ import annotations

import io
import json
from html import unescape

import pytest
from rich.console import Console

from scaling.analysis.results import Measured
from scaling.records import files
from scaling.records.files import write_json
from scaling.report import text
from scaling.report.html import figures_of, page
from scaling.report.markdown import markdown
from scaling.report.terminal import print_analysis
from scaling.report.tracking import tables
from scaling.report.tracking import tables as charts

FIGURES = (
    # path in a point of analysis.json, name in W&B, scale
    (("efficiency",), "efficiency", 100),
    (("step_ms",), "step_ms", 1),
    (("loss", "link_bandwidth"), "loss_link_bandwidth", 100),
    (("loss", "unexplained"), "loss_unexplained", 100),
    (("parts_ms", "exposed_transfer"), "parts_exposed_transfer_ms", 1),
    (("comm", "busbw_gbit_s"), "busbw_gbit_s", 1),
)


@pytest.fixture(scope="module")
def shown(sample):
    """What each renderer shows of the run, as text."""
    analysis, plan = sample.good(), sample.plan()
    terminal = io.StringIO()
    print_analysis(Console(file=terminal, width=80, no_color=True), analysis, plan)
    found = {
        "terminal": terminal.getvalue(),
        "page": unescape(page(analysis, plan, ())).replace("\N{NO-BREAK SPACE}", " "),
        "markdown": markdown(analysis, plan),
    }
    return {name: " ".join(said.split()) for name, said in found.items()}


@pytest.mark.parametrize(("path", "name", "scale"), FIGURES, ids=[name for _, name, _ in FIGURES])
@pytest.mark.parametrize("world_size", [2, 4])
def test_one_number_everywhere(path, name, scale, world_size, shown, sample, tmp_path):
    point = next(p for p in sample.good().points if p.world_size == world_size)
    write_json(tmp_path / "point.json", point)
    stored = json.loads((tmp_path / "point.json").read_text())
    for key in path:
        stored = stored[key]
    measured = files.decode(Measured, stored)
    logged = tables.numbers(point)
    assert Measured(logged[name], logged[f"{name}_low"], logged[f"{name}_high"], measured.n) == measured
    value = text.value_of(measured, scale)
    assert value in shown["terminal"]
    assert value in shown["page"]
    if world_size == 4 or name in {"efficiency", "step_ms"}:  # Markdown draws the largest waterfall
        assert value in shown["markdown"]


def test_the_figures_draw_these_numbers(sample):
    analysis = sample.good()
    drawn = {plot.name: plot for plot in figures_of(analysis, sample.plan(), (), ())}
    for point in analysis.points[1:]:
        curve = next(t for t in drawn["efficiency"].data if t.get("mode", "").startswith("lines+markers"))
        at = curve["x"].index(point.world_size)
        assert curve["y"][at] == pytest.approx(100 * point.efficiency.value)
        assert curve["text"][at] == text.percent(point.efficiency)
        fall = {t["y"][0]: t for t in drawn[f"waterfall-{point.world_size}"].data if t["type"] == "bar"}
        lost = fall["link bandwidth"]
        assert lost["x"][0] == pytest.approx(100 * point.loss.link_bandwidth.value)
        assert lost["customdata"] == [text.percent(point.loss.link_bandwidth)]
        chart = dict(charts.charts(analysis)["waterfall_chart"]["bars"])
        if point.world_size == 4:
            assert chart["link bandwidth"] == lost["x"][0]


def test_the_answer_is_the_same_sentence(sample, shown):
    said = "At 4 ranks the run keeps 57.4 % ±1.2 of ideal; most of the loss, 38.3 % of the step, is link bandwidth."
    assert all(said in one for one in shown.values())
