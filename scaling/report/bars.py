"""Bars of characters: the parts of a step, and what it is lost to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rich.text import Text

from scaling.analysis.results import Loss, Measured, Parts
from scaling.report import text
from scaling.report.lines import WIDTH

NAME = 17
NUMBER = 18
BAR = WIDTH - 2 - NAME - NUMBER - 2 - 1


def part_lines(parts: Parts) -> Iterator[Text]:
    """A line a part, in the order in which they run."""
    found = text.parts_of(parts)
    if not found:
        return
    whole = sum(value.value for _, value in found)
    yield Text(f"#   {'part of a step':<{NAME - 2}}{'ms':>6}", style="dim")
    for key, value in found:
        cells = round(BAR * value.value / whole) if whole > 0 else 0
        yield _bar_line(text.PARTS[key], text.quantity(value), range(cells), "cyan")


def waterfall_lines(loss: Loss, efficiency: Measured | None) -> Iterator[Text]:
    """From the ideal down to what was measured, one cause a line, each bar where the last one ended."""
    found = text.losses_of(loss)
    level, edges = 1.0, [1.0]
    for _, value in found:
        level -= value.value if value else 0.0
        edges.append(level)
    cells = [max(0, round(BAR * edge / max(edges))) for edge in edges]
    yield Text(f"#   {'loss':<{NAME - 2}}{'%':>6} of the step", style="dim")
    yield _bar_line("ideal", "100", range(cells[0]), "green")
    for (cause, value), (start, end) in zip(found, itertools.pairwise(cells), strict=True):
        style, block = ("green", "░") if end > start else ("red", "█")
        share = text.quantity(value, scale=100)
        yield _bar_line(text.cause_name(cause), share, range(*sorted((start, end))), style, block)
    if efficiency is not None:
        measured = round(BAR * efficiency.value / max(edges))
        yield _bar_line("measured", text.quantity(efficiency, scale=100), range(measured), "bold")


def _bar_line(name: str, number: str, cells: range, style: str, block: str = "█") -> Text:
    value, _, interval = number.partition(" ")
    figures = f"{value:>6} {interval}"
    bar = block * len(cells) or "▏"
    return Text.assemble(f"  {name:<{NAME}}{figures:<{NUMBER}}  {' ' * cells.start}", (bar, style))
