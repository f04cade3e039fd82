"""Figures as files, drawn by a real browser.

timeline.json, as Perfetto opens it.
"""

import json
import shutil
import struct
from xml.etree import ElementTree as ET

import pytest
from support.reports import figures_of

from scaling.errors import InputError
from scaling.report.figures import (
    BROWSERS,
    HEAD_PX,
    SCALE,
    WIDTH_PX,
    chrome,
    coloured,
    find_browser,
    light_colours,
    titled,
    write_figures,
)


@pytest.mark.browser
def test_every_figure_as_svg_and_png(sample, tmp_path):
    pytest.importorskip("kaleido")
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no chromium on PATH")
    plots = figures_of(sample.good(), sample.plan(), (sample.timeline(2),), sample.histories())
    folder = tmp_path / "figures"
    written = write_figures(plots, folder, find_browser(folder))
    assert {p.name for p in written} == {f"{p.name}.{end}" for p in plots for end in ("svg", "png")}
    for plot in plots:
        root = ET.fromstring((folder / f"{plot.name}.svg").read_text(encoding="utf-8"))
        assert root.tag.endswith("svg")
        said = " ".join("".join(root.itertext()).split())
        assert "$" not in said
        assert plot.layout["xaxis"]["title"]["text"] in said
        png = (folder / f"{plot.name}.png").read_bytes()
        width, height = struct.unpack(">II", png[16:24])
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        assert width == SCALE * WIDTH_PX
        assert height >= SCALE * (plot.height_px + HEAD_PX)
    fall = (folder / "waterfall-4.svg").read_text(encoding="utf-8")
    assert "link bandwidth" in fall
    assert "57.4 % ±1.2" in fall


def test_without_a_browser_it_says_so(tmp_path, monkeypatch):
    pytest.importorskip("kaleido")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="no Chromium or Chrome on PATH to draw them; install one"):
        find_browser(tmp_path)


def test_without_kaleido_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'scaling-harness\[figures\]'"):
        find_browser(tmp_path)


def test_colours_become_those_of_the_light_page(sample):
    """A figure that stands alone has no style sheet to look its colours up in."""
    colours = light_colours()
    assert colours["bg"] == "#ffffff"
    for plot in figures_of(sample.good(), sample.plan(), (sample.timeline(2),), sample.histories()):
        assert '"$' not in json.dumps(coloured(titled(plot), colours))


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="this is a file; name a folder"):
        find_browser(tmp_path / "file")


def test_chromes_format_has_a_process_a_world_size_and_two_threads_a_rank(sample):
    drawn = sample.timeline(2)
    events = json.loads(chrome((drawn,)))["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"world size 2"}
    threads = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    assert set(threads) == {f"rank {r} {lane}" for r in (0, 1) for lane in ("compute", "link")}
    assert len(set(threads.values())) == 4
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(drawn.spans)
    forward = next(e for e in complete if (e["name"], e["tid"]) == ("forward", threads["rank 0 compute"]))
    span = next(s for s in drawn.spans if (s.rank, s.name) == (0, "forward"))
    assert forward["ts"] == pytest.approx(span.begin_ms * 1e3, abs=0.1)
    assert forward["dur"] == pytest.approx((span.end_ms - span.begin_ms) * 1e3, abs=0.1)
