"""A report as a document: built once from results, then drawn by the terminal, the page and Markdown.

Everything in it is text or a plot; no number is formatted and no result is read after this. What only some
renderers show says so in `on`, so that no renderer decides about content. Text may come from anywhere: every
renderer removes control characters and escapes what its own format would read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, Literal, TypeVar

from scaling.report.plots.base import Plot


class Renderer(Flag):
    """Where a part of a document appears."""

    TERMINAL = auto()
    PAGE = auto()
    MARKDOWN = auto()


TERMINAL, PAGE, MARKDOWN = Renderer.TERMINAL, Renderer.PAGE, Renderer.MARKDOWN
EVERYWHERE = TERMINAL | PAGE | MARKDOWN
NOWHERE = Renderer(0)

Tone = Literal["", "good", "bad", "warning", "caution", "alarm"]
Columns = tuple[tuple[str, str], ...]
"""Name and unit of each column."""
Rows = tuple[tuple[str, ...], ...]
T = TypeVar("T")
Column = tuple[str, str, Callable[[T], str]]
"""Name and unit of a column, and what each row's cell is made of."""


def heads(*names: str | tuple[str, str]) -> Columns:
    """Columns from (name, unit), or the name alone where the column has no unit."""
    return tuple((name, "") if isinstance(name, str) else name for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One piece of a section."""

    on: Renderer = EVERYWHERE

    def shown_by(self, renderer: Renderer) -> bool:
        return renderer in self.on


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Block):
    """Formatted cells; the first column names the row."""

    columns: Columns
    rows: Rows
    title: str = ""
    label: str = ""
    """What a screen reader calls it."""
    note: str = ""
    """What its columns mean."""
    words: bool = False
    """Whether its cells are words, which are aligned to the left and wrapped, not numbers."""
    folded: str = ""
    """On a page: the line under which it is folded away."""

    def shown_by(self, renderer: Renderer) -> bool:
        return renderer in self.on and bool(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One statement."""

    text: str
    name: str = ""
    """What it is about, where the lines are `facts` or `conditions`."""
    tone: Tone = ""
    level: int = 0
    """1: it belongs to the line of level 0 above it."""
    link: tuple[str, str] | None = None
    """Words in the text that lead to a section, and the title of that section."""


Look = Literal["items", "prose", "warnings", "facts", "conditions", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines(Block):
    """Statements below each other.

    `items` and `prose` are lists (the terminal marks the first with bullets), `warnings` stand out, `facts` and
    `conditions` have names (the terminal writes conditions as comments), a `note` is small print.
    """

    items: tuple[Line, ...]
    look: Look = "items"
    name_width: int = 0
    """Characters that a terminal keeps for the names; 0: as wide as beside bars for facts, else the longest name."""
    whole: bool = False
    """Whether a terminal must not break the lines, so that they can be copied."""

    def shown_by(self, renderer: Renderer) -> bool:
        return renderer in self.on and bool(self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar made of characters. `start` and `end` are fractions of the full width; a loss that rises is a gain."""

    name: str
    value: str
    """Formatted, without its unit."""
    start: float
    end: float
    tone: Literal["part", "ideal", "loss", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(Block):
    """A plot where a renderer can draw one, or the same as bars of characters."""

    plot: Plot | None = None
    title: str = ""
    beside: bool = False
    """Whether a page may put it beside its neighbours."""
    bars: tuple[Bar, ...] = ()
    heading: tuple[str, str] = ("", "")
    """What the bars show, and their unit."""

    def shown_by(self, renderer: Renderer) -> bool:
        """A page needs the plot, the others the bars."""
        return renderer in self.on and (self.plot is not None if renderer is PAGE else bool(self.bars))


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something to try: overrides, the line of the user's own code that they stand for, the predicted gain."""

    overrides: str
    code: str
    gain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Block):
    """A verdict: its evidence, and what to try."""

    title: str
    confidence: str
    evidence: tuple[str, ...]
    advice: tuple[Advice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of a document. It is left out where none of its blocks is shown."""

    title: str
    blocks: tuple[Block, ...] = ()
    on: Renderer = EVERYWHERE
    titled_on: Renderer = EVERYWHERE
    folded_on: Renderer = NOWHERE
    """Renderers that fold the section away under its title."""
    alarm: bool = False
    """Whether the title itself is a warning."""
    title_alone: bool = False
    """Whether the title says enough without any block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One report. It begins with its lead, else with the answer, with which a terminal then ends."""

    title: str = ""
    answer: str = ""
    sections: tuple[Section, ...]
    about: str = ""
    """Below the title of a page."""
    when: str = ""
    badge: str = ""
    """A condition that every reader must see, beside the title."""
    badge_means: str = ""
    not_valid: bool = False
    """Whether the answer is that there is none."""
    lead: tuple[Line, ...] = ()
    """What a terminal and Markdown begin with in place of the answer alone; a terminal may show nothing else."""
    sureness: tuple[Line, ...] = ()
    """On a page: how well the answer is known."""
    closing: tuple[Line, ...] = ()
    """In a terminal: paths and commands at the very end, never broken."""

    def sections_on(self, renderer: Renderer) -> Iterator[tuple[Section, tuple[Block, ...]]]:
        """The sections that a renderer shows, each with the blocks that it shows."""
        for section in self.sections:
            blocks = tuple(block for block in section.blocks if block.shown_by(renderer))
            if renderer in section.on and (blocks or section.title_alone):
                yield section, blocks

    def plots(self) -> tuple[Plot, ...]:
        """What the page draws, in its order."""
        blocks = (block for _, shown in self.sections_on(PAGE) for block in shown)
        return tuple(block.plot for block in blocks if isinstance(block, Figure) and block.plot is not None)


def tabulated(
    things: Iterable[T], columns: Iterable[Column[T]], shown: Mapping[str, bool] | None = None, **about: Any
) -> Table:
    """A row for each thing. `shown`: whether columns stand in it that not every table needs, by their names.

    `about`: other fields of the table, such as its label.
    """
    chosen = [column for column in columns if (shown or {}).get(column[0], True)]
    rows = tuple(tuple(cell(thing) for *_, cell in chosen) for thing in things)
    return Table(columns=tuple((name, unit) for name, unit, _ in chosen), rows=rows, **about)


def section(title: str, *blocks: Block, **about: Any) -> Section:
    """A section of some blocks. `about`: its other fields, such as the renderers that it is `on`."""
    return Section(title=title, blocks=blocks, **about)


def lines(*texts: str, look: Look = "items", on: Renderer = EVERYWHERE, tone: Tone = "") -> Lines:
    """Lines of text alone; empty texts are left out."""
    return Lines(items=tuple(Line(text=text, tone=tone) for text in texts if text), look=look, on=on)


def named(*pairs: tuple[str, str], look: Look = "facts", name_width: int = 0) -> Lines:
    """Lines with names; those without text are left out."""
    named_lines = tuple(Line(name=name, text=text) for name, text in pairs if text)
    return Lines(items=named_lines, look=look, name_width=name_width)
