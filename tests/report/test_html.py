import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import plotly.graph_objects as go
import pytest

from scaling.analysis.results import Fabric, Quality
from scaling.report.html import comparison_page, page


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
    return page(sample.good(), sample.plan(), (sample.timeline(2), sample.timeline(4, 55.1)))


@pytest.fixture(scope="module")
def bad(sample):
    return page(sample.bad(), sample.bad_plan(), ())


def figures(document):
    return json.loads(re.search(r'id="figures">(.*?)</script>', document, re.DOTALL).group(1))


def attributes(document, tag):
    return [attrs for name, attrs in Outline(document).tags if name == tag]


def test_the_sections_of_a_run(good):
    assert Outline(good).headings == [
        "highmem_cnn on emulated_pcie",
        "Key figures",
        "Scaling",
        "Where the efficiency goes",
        "Parts of a step",
        "What limits it, and what to try",
        "Communication",
        "One typical step",
        "Conditions",
        "Quality",
    ]


def test_the_answer_stands_first(good):
    said = Outline(good).text
    assert said.index("At 4 ranks the run keeps 57.4 % ±1.2 of ideal") < said.index("Key figures")


def test_it_is_one_file_below_six_megabytes(good):
    assert len(good.encode()) <= 6 * 2**20
    assert not any("src" in attrs for _, attrs in Outline(good).tags)
    assert [attrs["href"] for attrs in attributes(good, "link")] == ["data:,"]
    policy = next(a["content"] for a in attributes(good, "meta") if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    assert good.count("</script>") == 3


def test_every_figure_is_described_and_every_axis_has_a_unit(good):
    drawn = figures(good)
    places = [attrs for attrs in attributes(good, "div") if attrs.get("class") == "plot"]
    assert len(drawn) == len(places) == len(attributes(good, "figcaption")) == 8
    assert all(attrs["aria-label"] for attrs in places + attributes(good, "figure"))
    for figure in drawn:
        assert re.search(r"\(|%|ms", figure["layout"]["xaxis"]["title"]["text"])
        if figure["data"][0]["type"] == "scatter":
            assert "(" in figure["layout"]["yaxis"]["title"]["text"]


def test_plotly_accepts_every_figure(good, sample):
    compared = comparison_page(sample.comparison(), sample.good(), sample.other())
    for figure in figures(good) + figures(compared):
        painted = re.sub(r'"\$[a-z-]+"', '"#123456"', json.dumps(figure))
        go.Figure(json.loads(painted))


def test_every_colour_of_a_figure_is_defined_for_light_and_dark(good):
    used = set(re.findall(r'"\$([a-z-]+)"', json.dumps(figures(good))))
    light = good[: good.index("@media screen")]
    assert used
    assert all(f"--{name}:" in light for name in used)


def test_the_waterfall_closes(good):
    fall = figures(good)[1]["data"]
    ends = [(bar["base"][0], bar["base"][0] + bar["x"][0]) for bar in fall]
    assert ends[0] == (0, 100)
    assert ends[-2][0] == pytest.approx(ends[-1][1], abs=0.2) or ends[-2][1] == pytest.approx(
        ends[-1][1], abs=0.2
    )


def test_the_fitted_curve_meets_the_measured_one(good):
    measured, fitted = (
        next(t for t in figures(good)[4]["data"] if word in t["name"]) for word in ("measured", "fit")
    )
    assert fitted["y"][0] == pytest.approx(measured["y"][0], rel=1e-3)
    assert fitted["y"][-1] == pytest.approx(measured["y"][-1], rel=1e-3)


def test_buckets_that_overlap_lie_in_two_rows(good):
    bars = next(t for t in figures(good)[6]["data"] if t["text"][0] == "bucket 0")
    assert bars["width"][0] == pytest.approx(0.42)
    assert bars["y"][0] == bars["y"][1] != bars["y"][2]


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
