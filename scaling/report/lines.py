"""Lines of a report in the manner of nccl-tests: `#` lines say what holds, the others carry numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from scaling.report import text

WIDTH = 80

_PLAIN_ASCII = str.maketrans({"█": "#", "░": "=", "▏": "|", "±": "+-"})


def printed(console: Console, lines: Iterable[Text]) -> None:
    """Print lines as they are, in plain ASCII where the terminal has no more."""
    for line in lines:
        if console.options.ascii_only:
            line.plain = line.plain.translate(_PLAIN_ASCII)
        console.print(line, soft_wrap=True, highlight=False)


def head(title: str) -> Text:
    """The title of a section."""
    return Text(f"#\n# {title}", style="bold")


def table(columns: Sequence[tuple[str, str]], rows: Sequence[tuple[str, ...]]) -> Iterator[Text]:
    """A two-row header, name and unit, then the rows; two spaces between columns where they fit."""
    names, units = zip(*columns, strict=True)
    widths = [max(map(len, column)) for column in zip(names, units, *rows, strict=True)]
    gap = "  " if 1 + sum(widths) + 2 * (len(widths) - 1) < WIDTH else " "
    for cells in (names, units):
        yield Text("#" + gap.join(_aligned(cells, widths)).rstrip(), style="dim")
    for row in rows:
        yield Text(" " + gap.join(_aligned(row, widths)).rstrip())


def prose(value: str, *, lead: str = "  ", hang: str = "  ", style: str = "") -> Iterator[Text]:
    """Text wrapped to the width."""
    lines = textwrap.wrap(
        text.bound(value), WIDTH, initial_indent=lead, subsequent_indent=hang, break_on_hyphens=False
    )
    return (Text(line.replace("\N{NO-BREAK SPACE}", " "), style=style) for line in lines)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    return [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
