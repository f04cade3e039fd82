"""Bars made of characters, as wide as a terminal's line."""

from __future__ import annotations

from scaling.report.model import Bar, Figure

WIDTH = 80
NAME = 17
NUMBER = 18
BAR = WIDTH - 2 - NAME - NUMBER - 2 - 1

LESS = "░"
"""What a gain is drawn with."""


def heading(figure: Figure) -> str:
    """What the bars show, and their unit above the values."""
    what, (unit, _, more) = figure.heading[0], figure.heading[1].partition(" ")
    return f"#   {what:<{NAME - 2}}{unit:>6} {more}".rstrip()


def line(bar: Bar) -> tuple[str, str]:
    """Name, value and indent of one bar, and the bar itself, as many characters as it is long."""
    start, end = round(BAR * bar.start), round(BAR * bar.end)
    block = LESS if bar.tone == "loss" and end > start else "█"
    value, _, interval = bar.value.partition(" ")
    figures = f"{value:>6} {interval}"
    indent = " " * min(start, end)
    return f"  {bar.name:<{NAME}}{figures:<{NUMBER}}  {indent}", block * abs(end - start) or "▏"
