"""Every report that the commands draw, as text, from results alone."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
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


def printed(show: Callable[..., None], *args: Any, width: int = 80) -> str:
    """What a show prints to a terminal without colours."""
    out = io.StringIO()
    show(Console(file=out, width=width, no_color=True), *args)
    return out.getvalue()


def as_text(analysis: Analysis, plan: Plan) -> dict[str, str]:
    """What each renderer shows of a run, its words with a blank between them; the terminal's are in 80 columns."""
    on_terminal = printed(print_analysis, analysis, plan)
    assert max(map(len, on_terminal.splitlines())) <= 80
    shown = {
        "terminal": on_terminal,
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
