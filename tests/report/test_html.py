"""One figure reads the same wherever it is shown: terminal, page, Markdown, W&B and analysis.json."""

import json
import re
from dataclasses import fields, replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest
from support.reports import as_text, comparison_page, figures_of, page, sweep_page

from scaling.analysis.results import Drawn, Fabric, Loss, Measured, Quality, StepParts, Timeline
from scaling.records import files
from scaling.records.files import write_json
from scaling.report import text
from scaling.report.plots.efficiency import scaling_curve, waterfall
from scaling.report.plots.steps import timeline
from scaling.report.tracking import tables
from scaling.report.tracking import tables as charts


class Outline(HTMLParser):
    """Headings, tags and text outside of scripts and styles."""

    def __init__(self, document):
        super().__init__()
        self.headings, self.tags, self.text, self.open = [], [], "", []
        self.feed(document)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text += data.replace("\N{NO-BREAK SPACE}", " ")
            if self.open and self.open[-1] in {"h1", "h2"}:
                self.headings.append(data)


@pytest.fixture(scope="module")
def good(sample):
    drawn = (sample.timeline(2), sample.timeline(4, 55.1))
    return page(sample.good(), sample.plan(), drawn, sample.histories(), sample.machines())


@pytest.fixture(scope="module")
def bad(sample):
    return page(sample.bad(), sample.bad_plan(), ())


def figures(document):
    return json.loads(re.search(r'id="figures">(.*?)</script>', document, re.DOTALL).group(1))


def plain(label):
    return label.replace("\N{NO-BREAK SPACE}", " ")


def figure(document, about):
    """The one whose description begins so."""
    places = [a["aria-label"] for a in attributes(document, "div") if a.get("class") == "plot"]
    return next(
        f for f, label in zip(figures(document), places, strict=True) if plain(label).startswith(about)
    )


def attributes(document, tag):
    return [attrs for name, attrs in Outline(document).tags if name == tag]


def test_the_sections_of_a_run(good, sample):
    assert Outline(good).headings == ["highmem_cnn on emulated_pcie", *sample.SECTIONS]


def test_the_answer_stands_first(good):
    said = Outline(good).text
    assert said.index("At 4 ranks the run keeps 57.4 % ±1.2 of ideal") < said.index("Key figures")


def test_it_is_one_file_below_two_megabytes(good):
    assert len(good.encode()) <= 2e6
    assert not any("src" in attrs for _, attrs in Outline(good).tags)
    assert [attrs["href"] for attrs in attributes(good, "link")] == ["data:,"]
    policy = next(a["content"] for a in attributes(good, "meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert good.count("</script>") == 3


def test_every_figure_is_described_and_every_axis_has_a_unit(good):
    drawn = figures(good)
    places = [attrs for attrs in attributes(good, "div") if attrs.get("class") == "plot"]
    assert len(drawn) == len(places) == len(attributes(good, "figcaption")) == 9
    assert all(attrs["aria-label"] for attrs in places + attributes(good, "figure"))
    for figure in drawn:
        assert re.search(r"\(|%|ms", figure["layout"]["xaxis"]["title"]["text"])
        if figure["data"][0]["type"] == "scatter":
            assert "(" in figure["layout"]["yaxis"]["title"]["text"]


def test_plotly_accepts_every_figure(good, sample):
    compared = comparison_page(sample.comparison(), sample.good(), sample.other())
    for figure in figures(good) + figures(compared):
        painted = re.sub(r'"\$[a-z-]+"', '"#123456"', json.dumps(figure))
        assert len(go.Figure(json.loads(painted)).data) == len(figure["data"]) > 0


def test_every_colour_of_a_figure_is_defined_for_light_and_dark(good):
    used = set(re.findall(r'"\$([a-z-]+)"', json.dumps(figures(good))))
    parts = {field.name.replace("_", "-") for field in fields(StepParts)}
    light = good[: good.index("@media screen")]
    assert used >= parts - {"exposed-enqueue"}
    assert all(f"--{name}:" in light for name in used | parts)
    assert all(f"\n.{name} {{" in good for name in parts)


def test_the_waterfall_closes(good):
    fall = [bar for bar in figure(good, "Loss waterfall at 2 ranks")["data"] if bar["type"] == "bar"]
    ends = [(bar["base"][0], bar["base"][0] + bar["x"][0]) for bar in fall]
    assert ends[0] == (0, 100)
    assert ends[-2][0] == pytest.approx(ends[-1][1], abs=0.2) or ends[-2][1] == pytest.approx(
        ends[-1][1], abs=0.2
    )


def test_an_interval_that_reaches_beyond_ideal_is_shown_whole(sample):
    """Else one could not see that nothing may be lost."""
    loss = Loss(link_bandwidth=Measured(0.01, -0.04, 0.06), unexplained=Measured(0.02))
    point = replace(sample.good().points[-1], loss=loss, efficiency=Measured(0.97, 0.92, 1.02))
    low, high = waterfall(point).layout["xaxis"]["range"]
    assert low == 0
    assert high >= 104


def test_the_fitted_curve_meets_the_measured_one(good):
    measured, fitted = (
        next(t for t in figure(good, "between hosts, 2 ranks")["data"] if word in t["name"])
        for word in ("measured", "fit")
    )
    assert fitted["y"][0] == pytest.approx(measured["y"][0], rel=1e-3)
    assert fitted["y"][-1] == pytest.approx(measured["y"][-1], rel=1e-3)


def test_buckets_that_overlap_lie_in_two_rows(good):
    bars = next(
        t for t in figure(good, "Timeline of one typical step of 2")["data"] if t["text"][0] == "bucket 0"
    )
    assert bars["width"][0] == pytest.approx(0.42)
    assert bars["y"][0] == bars["y"][1] != bars["y"][2]


def test_of_many_ranks_the_timeline_has_the_slowest_at_the_top_and_says_so(sample):
    some = Drawn(slowest=(3,), of_hosts=((7, 2),), typical=(0, 1))
    plot = timeline(Timeline(world_size=4096, spans=sample.timeline(4).spans, drawn=some))
    lanes = [f"rank {rank} {lane}" for rank in (3, 2, 0, 1) for lane in ("compute", "link")]
    assert plot.layout["yaxis"]["ticktext"] == lanes
    assert plot.layout["yaxis"]["tickvals"] == sorted(plot.layout["yaxis"]["tickvals"])
    assert "Of 4096 ranks 4 are drawn" in plot.caption
    assert (
        "wait for communication (3), then the slowest of the slowest other hosts (2 on host 7)"
        in plot.caption
    )


def test_outside_text_is_harmless(bad, sample):
    unlike = comparison_page(sample.comparison(comparable=False), sample.bad(), sample.bad())
    hostile = replace(
        sample.good(),
        fabric=Fabric(levels=(replace(sample.level(2), name="</script><b>"),)),
        run=sample.bad().run,
    )
    for document in (bad, unlike, page(hostile, sample.bad_plan(), ())):
        assert "<script>alert" not in document
        assert "</script><b>" not in document
        assert document.count("</script>") == 3
        assert sample.HOSTILE in Outline(document).text
    assert "\x1b" not in bad


def test_trouble_is_told(bad):
    said = Outline(bad).text
    for expected in (
        "SYNTHETIC",
        "rank 1 is late in forward",
        "4 ranks: failed on rank 3",
        "12 samples dropped",
    ):
        assert expected in said
    assert "Undecided at 2 ranks" in said


def test_contended_steps_are_crossed_and_how_sure_leads_there(sample):
    crossed = range(20, 30)
    document = page(sample.bad(), sample.bad_plan(), (), sample.histories(crossed))
    drawn = figure(document, "Steps of rank 0 at 4 ranks")["data"]
    marks = {t["name"]: t for t in drawn if t.get("mode") == "markers"}
    assert list(marks) == ["step", "step with the probe", "contended: others took the cores"]
    assert len({t["marker"]["symbol"] for t in marks.values()}) == len(marks)  # not by colour alone
    time_s = sample.histories()[0].columns["time_s"]
    assert marks["contended: others took the cores"]["x"] == [time_s[i] for i in crossed]
    labels = [a["aria-label"] for a in attributes(document, "div") if a.get("class") == "plot"]
    assert any("others took the cores beside 10 of 60 steps" in plain(label) for label in labels)
    how_sure = document[document.index('<section id="how-sure">') :]
    assert 'crossed in <a href="#steps-as-they-ran">' in how_sure


def test_without_contended_blocks_nothing_is_crossed(good):
    drawn = figure(good, "Steps of rank 0 at 4 ranks")["data"]
    assert [t["name"] for t in drawn if t.get("mode") == "markers"] == ["step", "step with the probe"]
    assert "crossed" not in Outline(good).text


def test_sections_without_data_are_left_out(sample):
    quiet = Quality(contended_blocks=0, dropped_samples=0, clock_bound_us=None)
    nothing = replace(sample.good(), points=(), verdicts=(), fabric=Fabric(), quality=quiet)
    document = page(nothing, sample.plan(), ())
    assert Outline(document).headings == ["highmem_cnn on emulated_pcie", "Conditions"]
    assert figures(document) == []


def test_numbers_read_as_in_the_terminal(good):
    assert "66.1 ±1.2" in Outline(good).text
    assert "Alpha 120 us ±6 a hop, busbw 0.183 Gbit/s ±0.002" in Outline(good).text


def test_a_comparison(sample):
    outline = Outline(comparison_page(sample.comparison(), sample.good(), sample.other()))
    assert outline.headings[0] == "emulated_nvlink against emulated_pcie"
    assert "Not comparable" not in outline.headings
    for expected in ("not distinguishable", "1.36 [1.33, 1.42]", "differs"):
        assert expected in outline.text
    assert {"Compute and fabric", "Cost", "What else differs"} <= set(outline.headings)


def test_a_comparison_of_unlike_runs(sample):
    outline = Outline(comparison_page(sample.comparison(comparable=False), sample.good(), sample.other()))
    assert "Not comparable" in outline.headings
    assert "precision differs: fp32, bf16" in outline.text


def test_machines_that_differ_stand_beside_each_other(good):
    said = " ".join(Outline(good).text.split())
    assert "ranks 0-2" in said
    assert "GLOO_SOCKET_IFNAME=eth0" in said
    assert "2.12.0" in said


def test_every_section_can_be_linked_to_and_is(good):
    links = [attrs["href"] for attrs in attributes(good, "a") if attrs["href"].startswith("#")]
    anchors = {f"#{attrs['id']}" for attrs in attributes(good, "section")}
    assert anchors <= set(links) <= anchors


def test_series_are_told_apart_by_more_than_colour(sample):
    runs = [("a", sample.good()), ("b", sample.other()), ("c", sample.good()), ("d", sample.other())]
    drawn = scaling_curve([(name, run.points) for name, run in runs])
    looks = {(t["line"]["dash"], t["marker"]["symbol"]) for t in drawn.data if "marker" in t}
    assert len(looks) == len(runs)
    parts = [t["marker"]["pattern"]["shape"] for t in figure_bars(sample)]
    # forward and backward, which stand side by side, differ in depth
    assert len(parts) == len(set(parts)) + 1


def test_a_curve_leaves_out_what_tells_nothing(sample):
    known = sample.good()
    first, *middle, last = known.points
    wild = replace(last, efficiency=Measured(0.33, 0.01, 9.53, 3))
    drawn = scaling_curve([("a", (first, *middle, wild))])
    assert drawn is None or last.world_size not in drawn.data[-1]["x"]
    assert last.world_size in scaling_curve([("a", known.points)]).data[-1]["x"]


def figure_bars(sample):
    found = figures_of(sample.good(), sample.plan(), (), ())
    return [t for t in next(p for p in found if p.name == "parts").data if t["type"] == "bar"]


def test_what_has_an_interval_shows_it(sample):
    found = {p.name: p for p in figures_of(sample.good(), sample.plan(), (), sample.histories())}
    assert set(found) == {
        "efficiency",
        "waterfall-2",
        "waterfall-4",
        "parts",
        "fabric-between-hosts-2",
        "fabric-between-hosts-4",
        "steps-4",
    }
    for name, plot in found.items():
        bars = [t for t in plot.data if "error_x" in t or "error_y" in t or t.get("fill") == "toself"]
        assert bars, name


def test_several_runs(sample):
    comparisons = [sample.comparison(), sample.comparison(comparable=False)]
    third = replace(sample.good(), run=sample.run_info(precision="bf16", id="x"))
    comparisons[1] = replace(comparisons[1], other=third.run)
    runs = [sample.good(), sample.other(), third]
    document = sweep_page(sample.swept(*runs), comparisons, runs)
    outline = Outline(document)
    assert outline.headings == [
        "3 runs",
        "Not comparable",
        "All runs",
        "Throughput of equal work",
        "Scaling",
        "Parts of a step",
        "Key figures",
    ]
    assert "come with emulated_nvlink, fp32 at 4 ranks" in outline.text
    assert "emulated_pcie, bf16 with emulated_pcie, fp32: precision differs" in outline.text
    assert "1.002 ±0.009 (not distinguishable)" in outline.text


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
    return as_text(sample.good(), sample.plan())


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


def test_wandb_leaves_out_the_term_of_the_loss_that_tells_nothing(sample):
    *others, last = sample.good().points
    vague = Measured(0.1, 0.0001, 10.0, 3)
    assert not vague.tells
    points = (*others, replace(last, loss=replace(last.loss, overlap=vague)))
    analysis = replace(sample.good(), points=points)
    whole, bars = (dict(charts.charts(run)["waterfall_chart"]["bars"]) for run in (sample.good(), analysis))
    assert whole == bars | {"overlap slowdown": 100 * last.loss.overlap.value}
    rows = tables.tables(analysis)["loss_waterfall"]["rows"]
    assert [last.world_size, "overlap"] not in [row[:2] for row in rows]


def test_the_answer_is_the_same_sentence(sample, shown):
    said = "At 4 ranks the run keeps 57.4 % ±1.2 of ideal; most of the loss, 38.3 % of the step, is link bandwidth."
    assert all(said in one for one in shown.values())
