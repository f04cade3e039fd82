"""The templates of pages, which lie in the folder `page` beside this.

Text is freed of control characters and escaped wherever a template writes it; only what is packaged with the program
goes into a page as it is.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import Any

import jinja2
from markupsafe import Markup

from scaling.plain import plain
from scaling.report import text
from scaling.report.model import Block, Figure, Finding, Table


def render(template: str, **values: Any) -> str:
    """A template with its values put in."""
    return _environment().get_template(template).render(**values)


def packaged(name: str) -> Markup:
    """A file of the page that is packaged with the program."""
    file = importlib.resources.files("scaling.report") / "page" / name
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704  our own file


def beside(block: Block) -> bool:
    """Whether a block may stand beside its neighbours."""
    return isinstance(block, Figure) and block.beside


@functools.cache
def _environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("scaling.report", "page"),
        autoescape=True,
        finalize=_harmless,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"anchor": _anchor, "headline": text.headline, "sentence": text.sentence}
    found.tests["table"] = lambda block: isinstance(block, Table)
    found.tests["figure"] = lambda block: isinstance(block, Figure)
    found.tests["finding"] = lambda block: isinstance(block, Finding)
    found.tests["beside"] = lambda group: beside(group[0])
    return found


def _anchor(title: str) -> str:
    """What a section is linked by."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _harmless(value: Any) -> Any:
    """Text without control characters and with quantities kept on one line; the template escapes it after this."""
    return text.bound(plain(value)) if isinstance(value, str) and not isinstance(value, Markup) else value
