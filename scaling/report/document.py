"""One HTML file that needs nothing from outside: its shell, and the pieces that pages are put together from."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence

from plotly.offline.offline import get_plotlyjs

from scaling.report import text
from scaling.report.page import SCRIPT, STYLE
from scaling.report.plots.base import Plot


class Figures:
    """Collects what the page's script will draw; hands out the places for it."""

    def __init__(self) -> None:
        self.drawn: list[Plot] = []

    def add(self, plot: Plot | None, title: str = "") -> str:
        """The `<figure>` of a plot; empty without one."""
        if plot is None:
            return ""
        self.drawn.append(plot)
        head = f"<h3>{esc(title)}</h3>" if title else ""
        size = f'style="height:{plot.height_px}px"'
        label = f'role="img" aria-label="{esc(plot.label)}"'
        place = f'<div class="plot" id="plot-{len(self.drawn) - 1}" {label} {size}></div>'
        caption = f"<figcaption>{esc(plot.caption)}</figcaption>"
        inside = f"{head}{_legend(plot.legend)}{place}{caption}"
        return f'<figure aria-label="{esc(title or plot.label)}">{inside}</figure>'

    def json(self) -> str:
        """Their data; `<` is escaped, so that no text in it can end the script element."""
        found = [{"data": p.data, "layout": p.layout | {"height": p.height_px}} for p in self.drawn]
        return json.dumps(found, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def document(title: str, body: str, figures: Figures) -> str:
    """The whole file. Its policy lets the page run what is in it and fetch nothing at all."""
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{esc(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>{body}</main>
<div id="on-paper" class="paper" hidden></div>
<script type="application/json" id="figures">{figures.json()}</script>
<script>{plotly()}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def plotly() -> str:
    """The library that draws, as it travels inside the page."""
    return str(get_plotlyjs())  # type: ignore[no-untyped-call]  # plotly declares no types here


def lead(answer: str, more: str = "", *, bad: bool = False) -> str:
    """The answer, before anything else; `more` is HTML."""
    return f'<p class="answer{" bad" if bad else ""}">{esc(answer)}</p>{more}'


def section(title: str, content: str) -> str:
    """A titled part of the page that can be linked to; empty without content."""
    return f'<section id="{anchor(title)}"><h2>{esc(title)}</h2>{content}</section>' if content else ""


def contents(sections: Iterable[str]) -> str:
    """Links to the sections that are there."""
    found = [m.groups() for one in sections if (m := re.match(r'<section id="([^"]+)"><h2>(.*?)</h2>', one))]
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in found)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if len(found) > 2 else ""


def anchor(title: str) -> str:
    """What a section is linked by."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def table(
    columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]], label: str = "", kind: str = ""
) -> str:
    """A table whose first column names its row; scrolls by itself where it is too wide."""
    heads = "".join(_head(name, unit) for name, unit in columns)
    body = "".join(
        f'<tr><th scope="row">{esc(row[0])}</th>{"".join(f"<td>{esc(c)}</td>" for c in row[1:])}</tr>'
        for row in rows
    )
    named = f' role="region" aria-label="{esc(label)}"' if label else ""
    whole = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide{" " + kind if kind else ""}" tabindex="0"{named}>{whole}</div>'


def _head(name: str, unit: str) -> str:
    if not name and not unit:
        return "<td></td>"  # a heading that says nothing is none
    return f'<th scope="col">{esc(name)}<small>{esc(unit)}</small></th>'


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    found = "".join(f'<li><i class="{key.replace("_", "-")}"></i>{esc(label)}</li>' for key, label in entries)
    return f'<ul class="legend">{found}</ul>' if found else ""


def pair(figures: Iterable[str]) -> str:
    """Figures side by side where there is room."""
    found = "".join(figures)
    return f'<div class="pair">{found}</div>' if found else ""


def pairs(entries: Iterable[tuple[str, str]]) -> str:
    """Names and what they stand for."""
    found = "".join(f"<dt>{esc(name)}</dt><dd>{esc(value)}</dd>" for name, value in entries)
    return f"<dl>{found}</dl>"


def items(lines: Iterable[str], kind: str = "") -> str:
    """A list; empty without lines."""
    found = "".join(f"<li>{esc(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{found}</ul>' if found and kind else f"<ul>{found}</ul>" if found else ""


def note(said: str) -> str:
    """Small print."""
    return f'<p class="note">{esc(said)}</p>'


def esc(outside: str) -> str:
    """Text from anywhere, harmless, with quantities kept on one line."""
    return html.escape(text.bound(text.plain(outside)))
