"""Figures as files, drawn by a real browser."""

from __future__ import annotations

import shutil
import struct
from xml.etree import ElementTree as ET

import pytest

from scaling.errors import InputError
from scaling.report.figures import BROWSERS, HEAD_PX, SCALE, WIDTH_PX, find_browser, write_figures
from scaling.report.html import figures_of


@pytest.mark.browser
def test_every_figure_as_svg_and_png(sample, tmp_path):
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
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="a Chromium or Chrome on PATH draws them, and there is none"):
        find_browser(tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="not a folder"):
        find_browser(tmp_path / "file")
