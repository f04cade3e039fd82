"""Figures as files: SVG and PNG, drawn by kaleido in a Chromium of this machine, without a network.

Timelines too, in Chrome's trace format, which Perfetto opens.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scaling.analysis.results import Timeline
from scaling.errors import InputError, ScalingError
from scaling.report.html import packaged
from scaling.report.plots.base import Json, Plot

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FORMATS = ("svg", "png")
WIDTH_PX = 900
MARGIN_PX = 12
HEAD_PX = 40
"""Room for the title, and as much for the legend below it."""
SCALE = 2
"""Pixels of a PNG for each of the figure's."""
BOUND_S = 120
"""How long one figure may take, the browser's start included."""


def find_browser(folder: Path) -> str:
    """The browser that draws figures into a folder; InputError where something that this needs is missing."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--figures {folder}: this is a file; name a folder")
    if importlib.util.find_spec("kaleido") is None:
        raise InputError(
            f"--figures {folder}: kaleido is not installed; `pip install 'scaling-harness[figures]'` installs it, "
            "and report.html shows the same figures"
        )
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise InputError(
            f"--figures {folder}: no Chromium or Chrome on PATH to draw them; install one, or open report.html, "
            "which shows the same figures"
        )
    return browser


def write_figures(plots: Sequence[Plot], folder: Path, browser: str) -> list[Path]:
    """Write NAME.svg and NAME.png of every figure in the light colours on white; ScalingError where drawing fails."""
    folder.mkdir(parents=True, exist_ok=True)
    # Others may write to the folder, so nothing is drawn under a name at which a link may wait.
    with tempfile.TemporaryDirectory(dir=folder) as drawn:
        _draw(plots, Path(drawn), browser)
        return [path.replace(folder / path.name) for path in sorted(Path(drawn).iterdir())]


def _draw(plots: Sequence[Plot], folder: Path, browser: str) -> None:
    import kaleido  # noqa: PLC0415  optional, and only this needs it

    colours = light_colours()
    requests = [
        {
            "fig": coloured(titled(plot), colours),
            "path": folder / f"{plot.name}.{ending}",
            "opts": {"format": ending, "scale": SCALE if ending == "png" else 1},
        }
        for plot in plots
        for ending in FORMATS
    ]
    settings = {"path": browser, "mathjax": False, "timeout": BOUND_S}
    settings["enable_sandbox"] = os.geteuid() != 0  # Chromium refuses to start with it as root
    try:
        kaleido.write_fig_from_object_sync(requests, cancel_on_error=True, kopts=settings)
    except Exception as error:  # the browser, its driver and the library each have errors of their own
        raise ScalingError(
            f"{browser}: could not draw the figures ({type(error).__name__}: {error})"
        ) from error


def light_colours() -> dict[str, str]:
    """The colours of a page in its light scheme, by the names of their variables."""
    light, _, _ = str(packaged("style.css")).partition("@media")
    return dict(re.findall(r"--([a-z-]+): ([^;]+);", light))


def coloured(value: Any, colours: dict[str, str]) -> Any:
    """A figure with its `$name` colours put in."""
    if isinstance(value, str):
        return colours.get(value.removeprefix("$"), value) if value.startswith("$") else value
    if isinstance(value, dict):
        return {key: coloured(item, colours) for key, item in value.items()}
    return [coloured(item, colours) for item in value] if isinstance(value, list | tuple) else value


def titled(plot: Plot) -> Json:
    """A figure that stands alone: on white, under its name, with the legend that a page draws by itself."""
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


def chrome(timelines: Sequence[Timeline]) -> str:
    """The JSON of a file: a process for each world size, a thread for each rank and lane; times in us."""
    events: list[dict[str, Any]] = []
    for timeline in timelines:
        pid = timeline.world_size
        events.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"world size {pid}"}})
        lanes = list(dict.fromkeys(span.lane for span in timeline.spans))
        for span in timeline.spans:
            thread = span.rank * max(2, len(lanes)) + lanes.index(span.lane)
            label = {"name": f"rank {span.rank} {span.lane}"}
            events.append({"ph": "M", "pid": pid, "tid": thread, "name": "thread_name", "args": label})
            event = {
                "ph": "X",
                "pid": pid,
                "tid": thread,
                "name": span.name,
                "ts": round(span.begin_ms * 1e3, 1),
                "dur": round((span.end_ms - span.begin_ms) * 1e3, 1),
            }
            events.append(event if span.bytes is None else {**event, "args": {"bytes": span.bytes}})
    unique = {json.dumps(e, sort_keys=True): e for e in events}
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": list(unique.values())})
