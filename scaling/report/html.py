"""Documents as one HTML file each, which needs nothing from outside; its templates lie in the folder `page`.

Text is freed of control characters and escaped wherever a template writes it; only what is packaged with the program
goes into a page as it is.
"""

from __future__ import annotations

import base64
import functools
import importlib.resources
import itertools
import json
import zlib
from collections.abc import Sequence
from typing import Any

import jinja2
from markupsafe import Markup
from plotly.offline.offline import get_plotlyjs

from scaling.plain import plain
from scaling.report import text
from scaling.report.model import PAGE, Block, Document, Figure, Finding, Table
from scaling.report.plots.base import Plot, slug


def render(template: str, **values: Any) -> str:
    """A template with its values put in."""
    return _environment().get_template(template).render(**values)


def packaged(name: str) -> Markup:
    """A file of the page that is packaged with the program."""
    file = importlib.resources.files("scaling.report") / "page" / name
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704  our own file


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("scaling.report", "page"),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"anchor": slug, "headline": text.headline, "sentence": text.sentence}
    environment.tests["table"] = lambda block: isinstance(block, Table)
    environment.tests["figure"] = lambda block: isinstance(block, Figure)
    environment.tests["finding"] = lambda block: isinstance(block, Finding)
    return environment


def _harmless(value: Any) -> Any:
    """Text without control characters and with quantities kept on one line; the template escapes it after this."""
    return text.bound(plain(value)) if isinstance(value, str) and not isinstance(value, Markup) else value


POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""The page may run and show what is in it, and may fetch nothing at all."""


def draw(document: Document) -> str:
    """A document as the text of an HTML file."""
    sections = list(document.sections_on(PAGE))
    figures = [block for _, blocks in sections for block in blocks if isinstance(block, Figure)]
    places = {id(figure): place for place, figure in enumerate(figures)}
    return render(
        "page.html.j2",
        document=document,
        sections=[(section, _groups(blocks)) for section, blocks in sections],
        number=lambda figure: places[id(figure)],
        policy=POLICY,
        style=packaged("style.css"),
        script=packaged("page.js"),
        plotly=plotly(),
        figures=_json(document.plots()),
    )


@functools.cache
def plotly() -> Markup:
    """The library that draws, as it travels inside the page: zlib, then base 85 without `<`; page.js unpacks it.

    That makes 1.8 of 4.8 MB. Base 64 would make 2.0.
    """
    packed = zlib.compress(get_plotlyjs().encode(), 9)  # type: ignore[no-untyped-call]  # plotly has no types here
    text = base64.b85encode(packed).decode().replace("<", ",")
    return Markup(text)  # noqa: S704  none of its characters can end the element


def _groups(blocks: Sequence[Block]) -> list[tuple[bool, list[Block]]]:
    """Neighbours that may stand beside each other are one group, for which the first is True."""
    groups = itertools.groupby(blocks, lambda block: isinstance(block, Figure) and block.beside)
    return [(beside, list(group)) for beside, group in groups]


def _json(plots: Sequence[Plot]) -> Markup:
    """The data of the figures; `<` is escaped, so that no text in it can end the script element."""
    figures: list[dict[str, Any]] = [
        {"data": p.data, "layout": p.layout | {"height": p.height_px}} for p in plots
    ]
    written = json.dumps(figures, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(written)  # noqa: S704  see above
