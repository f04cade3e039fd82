"""Figures as files: SVG and PNG, drawn by the same library as in the page, in a Chromium of this machine."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from scaling.errors import InputError, ScalingError
from scaling.report.document import plotly
from scaling.report.page import STYLE
from scaling.report.plots.base import Json, Plot

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
WIDTH_PX = 900
MARGIN_PX = 12
HEAD_PX = 40
"""For the title, and for the legend below it."""
SCALE = 2
"""Pixels of a PNG for each of the figure's."""
BOUND_S = 120
_SCRIPT = """
'use strict';
const style = getComputedStyle(document.documentElement);
function coloured(value) {
  if (typeof value === 'string') {
    return value[0] === '$' ? style.getPropertyValue('--' + value.slice(1)).trim() || value : value;
  }
  if (Array.isArray(value)) return value.map(coloured);
  if (value && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v)]));
  }
  return value;
}
async function all() {
  const found = [];
  for (const figure of JSON.parse(document.getElementById('figures').textContent)) {
    const { data, layout } = coloured(figure);
    const size = { width: layout.width, height: layout.height };
    const svg = await Plotly.toImage({ data, layout }, { format: 'svg', ...size });
    const png = await Plotly.toImage({ data, layout }, { format: 'png', ...size, scale: SCALE });
    found.push({ svg, png });
  }
  return found;
}
all().catch(error => ({ error: String(error) })).then(found => {
  document.getElementById('drawn').textContent = JSON.stringify(found);
});
"""
_DRAWN = re.compile(r'<script type="application/json" id="drawn">(.*?)</script>', re.DOTALL)


def find_browser(folder: Path) -> str:
    """What draws figures into a folder; InputError where there is none, or the folder is no folder."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--figures {folder}: not a folder; name one")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise InputError(
            f"--figures {folder}: a Chromium or Chrome on PATH draws them, and there is none; report.html has them too"
        )
    return browser


def write_figures(plots: Sequence[Plot], folder: Path, browser: str) -> list[Path]:
    """NAME.svg and NAME.png of every figure, light on white."""
    drawn = _draw(browser, plots)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for plot, images in zip(plots, drawn, strict=True):
        for ending, data in images.items():
            path = folder / f"{plot.name}.{ending}"
            path.write_bytes(data)
            written.append(path)
    return written


def _draw(browser: str, plots: Sequence[Plot]) -> list[dict[str, bytes]]:
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "figures.html"
        page.write_text(_page(plots), encoding="utf-8")
        flags = ["--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={scratch}/profile"]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []  # it refuses to start as root otherwise
        flags += ["--virtual-time-budget=60000", "--dump-dom"]
        try:
            done = subprocess.run(
                [browser, *flags, page.as_uri()],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=BOUND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ScalingError(f"{browser}: drew no figures within {BOUND_S} s") from error
    found = _DRAWN.search(done.stdout)
    images = json.loads(found.group(1) or "null") if found else None
    if not isinstance(images, list) or len(images) != len(plots):
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ScalingError(f"{browser}: drew no figures ({images['error'] if images else last})")
    return [{"svg": _text(one["svg"]), "png": _binary(one["png"])} for one in images]


def _page(plots: Sequence[Plot]) -> str:
    figures = [_titled(plot) for plot in plots]
    data = json.dumps(figures, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html><html><head><meta charset="utf-8"><style>{STYLE}</style></head><body>'
        f'<script type="application/json" id="figures">{data}</script>'
        '<script type="application/json" id="drawn"></script>'
        f"<script>{plotly()}</script><script>{_SCRIPT.replace('SCALE', str(SCALE))}</script></body></html>"
    )


def _titled(plot: Plot) -> Json:
    """A figure that stands alone: on white, under its name, with the legend that the page draws by itself."""
    names: list[Json] = [{"name": label, "showlegend": True} for _, label in plot.legend]
    names += [{}] * (len(plot.data) - len(names))
    margin = {side: plot.layout["margin"][side] + MARGIN_PX for side in ("l", "r", "b")}
    top = HEAD_PX * (2 if plot.legend or plot.layout["showlegend"] else 1)
    look: Json = {"paper_bgcolor": "$bg", "plot_bgcolor": "$bg", "width": WIDTH_PX}
    look |= {"height": plot.height_px + top, "margin": margin | {"t": top}}
    look["showlegend"] = plot.layout["showlegend"] or bool(plot.legend)
    title = {"text": plot.label.partition(":")[0], "x": 0, "xref": "paper", "font": {"size": 15}}
    look["title"] = title | {"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": MARGIN_PX}}
    data = [trace | name for trace, name in zip(plot.data, names, strict=True)]
    return {"data": data, "layout": plot.layout | look}


def _text(url: str) -> bytes:
    """The SVG of a data URL."""
    return unquote(url.partition(",")[2]).encode()


def _binary(url: str) -> bytes:
    return base64.b64decode(url.partition(",")[2])
