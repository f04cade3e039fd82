"""Documents as text in the manner of nccl-tests: `#` lines are conditions and titles, the others carry numbers.

Nothing depends on colour, so a piped or saved report loses nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from functools import singledispatch

from rich.console import Console
from rich.text import Text

from scaling.plain import plain
from scaling.report import text
from scaling.report.model import TERMINAL, Block, Document, Figure, Finding, Lines, Table

_PLAIN_ASCII = str.maketrans({"█": "#", "░": "=", "▏": "|", "±": "+-"})
_STYLES = {
    "": "",
    "good": "green",
    "bad": "red",
    "warning": "yellow",
    "caution": "bold yellow",
    "alarm": "bold red",
}
PAGE_LINE = "page"
_BAR_STYLES = {"part": "cyan", "ideal": "green", "loss": "red", "measured": "bold"}


def draw(console: Console, document: Document, *, verbose: bool = True) -> None:
    """Print a document, or its lead only, in plain ASCII where the terminal has no more."""
    for line in _document(document) if verbose else _lead(document):
        _print(console, line)


def _print(console: Console, line: Text) -> None:
    if (safe := plain(line.plain)) != line.plain:  # an equal text would lose its styles
        line.plain = safe
    if console.options.ascii_only:
        line.plain = line.plain.translate(_PLAIN_ASCII)
    console.print(line, soft_wrap=True, highlight=False)


def _flat(value: str) -> str:
    return plain(value).replace("\n", " ")


def _lead(document: Document) -> Iterator[Text]:
    """The first lines, each with its name; a path is not broken."""
    width = max((len(line.name) for line in document.lead), default=0)
    for line in document.lead:
        lead = f"{line.name:<{width}}  "
        if line.name == PAGE_LINE:
            yield Text(lead + _flat(line.text))
        else:
            style = "bold" if line.name == "answer" else ""
            yield from _prose(line.text, lead=lead, hang=" " * len(lead), style=style)


def _document(document: Document) -> Iterator[Text]:
    if document.lead:
        yield from _lead(document)
        yield Text("#")
    for section, blocks in document.sections_on(TERMINAL):
        if section.title and TERMINAL in section.titled_on:
            alarm = section.alarm
            yield _head(section.title.upper() if alarm else section.title, "bold red" if alarm else "bold")
        for block in blocks:
            yield from _draw(block)
    if document.answer and not document.lead:
        yield _head("answer")
        yield from _prose(document.answer, style="bold")
    width = max((len(line.name) for line in document.closing), default=0)
    for line in document.closing:
        yield Text(f"# {line.name:<{width}}  {_flat(line.text)}".rstrip(), style="dim")


def _head(title: str, style: str = "bold") -> Text:
    return Text(f"#\n# {_flat(title)}", style=style)


@singledispatch
def _draw(block: Block) -> Iterator[Text]:
    raise TypeError(block)


@_draw.register
def _table(block: Table) -> Iterator[Text]:
    """A header of two rows, name and unit, then the rows; two spaces between columns where they fit."""
    if block.title:
        yield _head(block.title)
    names, units = (tuple(map(_flat, cells)) for cells in zip(*block.columns, strict=True))
    rows = [tuple(map(_flat, row)) for row in block.rows]
    widths = [max(map(len, column)) for column in zip(names, units, *rows, strict=True)]
    gap = "  " if 1 + sum(widths) + 2 * (len(widths) - 1) < text.WIDTH else " "
    for cells in (names, units):
        yield Text("#" + gap.join(_aligned(cells, widths)).rstrip(), style="dim")
    for row in rows:
        yield Text(" " + gap.join(_aligned(row, widths)).rstrip())
    yield from _prose(block.note, lead="# ", hang="# ", style="dim")


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]


@_draw.register
def _lines(block: Lines) -> Iterator[Text]:
    longest = max(len(line.name) for line in block.items)
    names = block.name_width or (text.NAME if block.look == "facts" else longest)
    deepest = max(line.level for line in block.items)
    for line in block.items:
        lead, hang, style = "  - ", " " * 4, _STYLES[line.tone]
        if block.look == "facts":
            width = names + 2 * (deepest - line.level)
            lead = f"{'  ' * (1 + line.level)}{_flat(line.name):<{width - 1}} "
            hang = " " * len(lead)
        elif block.look == "conditions":
            lead = f"# {_flat(line.name):<{names}}  " if names else "# "
            hang, style = "# " + " " * (len(lead) - 2), style or "dim"
        elif block.look == "note":
            lead, hang, style = "# ", "# ", "dim"
        elif block.look == "prose":
            lead = "  "
        elif block.look == "warnings":
            style = style or "yellow"
        if block.whole:
            yield Text(lead + _flat(line.text), style=style)
        else:
            yield from _prose(line.text, lead=lead, hang=hang, style=style)


@_draw.register
def _figure(block: Figure) -> Iterator[Text]:
    yield Text(text.heading(block), style="dim")
    for bar in block.bars:
        lead, drawn = text.line(bar)
        yield Text.assemble(lead, (drawn, "green" if drawn[0] == text.LESS else _BAR_STYLES[bar.tone]))


@_draw.register
def _finding(block: Finding) -> Iterator[Text]:
    yield from _prose(f"{block.title} (confidence {block.confidence})", style="bold")
    for evidence in block.evidence:
        yield from _prose(evidence, lead="  - ", hang="    ")
    for advice in block.advice:
        what, *code = [line for line in (advice.overrides, advice.code) if line] or [""]
        yield from _prose(f"{what}{advice.gain}", lead="  try  ", hang="       ", style="green")
        for line in code:
            yield from _prose(line, lead="       in code: ", hang="       ")


def _prose(value: str, *, lead: str = "  ", hang: str = "  ", style: str = "") -> Iterator[Text]:
    """Text wrapped to the width, without control characters."""
    wrapped = textwrap.wrap(
        text.bound(plain(value)),
        text.WIDTH,
        initial_indent=lead,
        subsequent_indent=hang,
        break_on_hyphens=False,
    )
    return (Text(line.replace("\N{NO-BREAK SPACE}", " "), style=style) for line in wrapped)
