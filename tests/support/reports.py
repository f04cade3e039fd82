"""Every report that the commands draw, as text, from results alone."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import unescape
from typing import Any

from rich.console import Console

from scaling.analysis.results import Analysis, Comparison, Sweep
from scaling.report import html, terminal
from scaling.report import markdown as markdown_report
from scaling.report.documents import comparison, run
from scaling.settings.plan import Plan

_PARTS = ("timelines", "histories", "machines")


def page(analysis: Analysis, plan: Plan, *parts: Sequence[Any], **named: Sequence[Any]) -> str:
    """The page of a run; `parts`: its timelines, histories and machines."""
    return html.draw(run.document(analysis, plan, **dict(zip(_PARTS, parts, strict=False)), **named))


def figures_of(analysis: Analysis, plan: Plan, *parts: Sequence[Any]) -> tuple[Any, ...]:
    """What the page of a run draws."""
    return run.document(analysis, plan, **dict(zip(_PARTS, parts, strict=False))).plots()


def markdown(analysis: Analysis, plan: Plan) -> str:
    return markdown_report.draw(run.document(analysis, plan))


def print_analysis(
    console: Console, analysis: Analysis, plan: Plan, *, report_path: Any = None, verbose: bool = True
) -> None:
    terminal.draw(console, run.document(analysis, plan, report_path=report_path), verbose=verbose)


def as_text(analysis: Analysis, plan: Plan) -> dict[str, str]:
    """What each renderer shows of a run, its words with a blank between them; the terminal's are in 80 columns."""
    terminal_file = io.StringIO()
    print_analysis(Console(file=terminal_file, width=80, no_color=True), analysis, plan)
    assert max(map(len, terminal_file.getvalue().splitlines())) <= 80
    shown = {
        "terminal": terminal_file.getvalue(),
        "page": unescape(page(analysis, plan, ())).replace("\N{NO-BREAK SPACE}", " "),
        "markdown": markdown(analysis, plan),
    }
    return {name: " ".join(said.split()) for name, said in shown.items()}


def comparison_page(compared: Comparison, base: Analysis, other: Analysis, sweep: Sweep | None = None) -> str:
    return html.draw(comparison.document(compared, base, other, sweep))


def comparison_markdown(compared: Comparison, sweep: Sweep | None = None) -> str:
    return markdown_report.draw(comparison.document(compared, sweep=sweep))


def print_comparison(console: Console, compared: Comparison, sweep: Sweep | None = None) -> None:
    terminal.draw(console, comparison.document(compared, sweep=sweep))


def sweep_page(sweep: Sweep, comparisons: Sequence[Comparison], runs: Sequence[Analysis]) -> str:
    return html.draw(comparison.several_document(sweep, comparisons, runs))
