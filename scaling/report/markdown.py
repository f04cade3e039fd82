"""Documents as Markdown, to paste into a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch

from scaling.analysis.results import Analysis, Comparison, Sweep
from scaling.plain import one_line, plain
from scaling.report import text
from scaling.report.documents import comparison
from scaling.report.model import MARKDOWN, Block, Document, Figure, Finding, Lines, Section, Table

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")
_LEADS = {"warnings": "> - ", "note": ""}


def sweep_markdown(sweep: Sweep, comparisons: Sequence[Comparison], runs: Sequence[Analysis]) -> str:
    """Several runs as one table, then those of equal work against each other."""
    pairs = (draw(comparison.document(pair)) for pair in comparisons if pair.comparable)
    return "\n".join([draw(comparison.several_document(sweep, comparisons, runs)), *pairs])


def draw(document: Document) -> str:
    """A document as the text of a Markdown file."""
    return "\n".join(_document(document)) + "\n"


def _document(document: Document) -> Iterator[str]:
    yield f"## {_esc(document.title)}"
    if document.badge:
        yield from ("", f"**{_esc(document.badge)}**: {_esc(document.badge_means)}")
    yield from ("", f"**{_esc(document.answer)}**")
    if rest := [line for line in document.lead if line.name not in ("answer", "page")]:
        yield ""
        yield from (f"- {line.name}: {_esc(line.text)}" for line in rest)
    for section, blocks in document.sections_on(MARKDOWN):
        folded = MARKDOWN in section.folded_on
        yield from _title(section, folded=folded)
        before: Block | None = None
        for block in blocks:
            if not (isinstance(block, Finding) and isinstance(before, Finding)):  # findings are one list
                yield ""
            yield from _draw(block)
            before = block
        if folded:
            yield from ("", "</details>")


def _title(section: Section, *, folded: bool) -> Iterator[str]:
    if not section.title or MARKDOWN not in section.titled_on:
        return
    title = _esc(text.headline(section.title))
    yield from ("", f"<details><summary>{title}</summary>" if folded else f"### {title}")


@singledispatch
def _draw(block: Block) -> Iterator[str]:
    raise TypeError(block)


@_draw.register
def _table(block: Table) -> Iterator[str]:
    heads = [_esc(f"{name} ({unit})" if unit else name) for name, unit in block.columns]
    yield _row(heads)
    yield f"|{'|'.join('---:' for _ in heads)}|"
    yield from (_row(map(_esc, row)) for row in block.rows)
    if block.note:
        yield from ("", _esc(text.sentence(block.note)))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


@_draw.register
def _lines(block: Lines) -> Iterator[str]:
    lead = _LEADS.get(block.look, "- ")
    for line in block.items:
        statement = f"{line.name}: {line.text}" if line.name else line.text
        yield f"{'  ' * line.level}{lead}{_esc(statement)}"


@_draw.register
def _figure(block: Figure) -> Iterator[str]:
    yield "```text"
    yield text.heading(block)
    yield from (plain("".join(text.line(bar))).rstrip() for bar in block.bars)
    yield "```"


@_draw.register
def _finding(block: Finding) -> Iterator[str]:
    yield f"- **{_esc(block.title)}** (confidence {_esc(block.confidence)})"
    yield from (f"  - {_esc(evidence)}" for evidence in block.evidence)
    for advice in block.advice:
        what, *code = [_code(line) for line in (advice.overrides, advice.code) if line] or [""]
        in_code = f", in code {code[0]}" if code else ""
        yield f"  - try {what}{_esc(advice.gain)}{in_code}"


def _code(outside: str) -> str:
    code = one_line(outside).replace("`", "'")
    return f"`{code}`"


def _esc(outside: str) -> str:
    """Text on one line, with everything escaped that Markdown would read as markup."""
    return _MARKUP.sub(r"\\\1", one_line(outside))
