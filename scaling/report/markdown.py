"""The results as Markdown, to paste into a pull request: the same figures as everywhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from scaling.analysis.results import Analysis, Comparison, Point, Verdict
from scaling.plan import Plan
from scaling.report import cases, findings, text, versus
from scaling.report.bars import waterfall_lines
from scaling.report.conditions import conditions
from scaling.report.fabric import fabric_lines
from scaling.report.hosts import SHOWN, host_lines, host_table

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~])")


def markdown(analysis: Analysis, plan: Plan) -> str:
    """The report of one run."""
    return "\n".join(_run(analysis, plan)) + "\n"


def comparison_markdown(comparisons: Sequence[Comparison]) -> str:
    """Runs against the first of them."""
    return "\n".join(line for one in comparisons for line in _comparison(one)) + "\n"


def _run(analysis: Analysis, plan: Plan) -> Iterator[str]:
    run = analysis.run
    yield f"## {_esc(f'{run.model} on {run.topology}')}"
    if run.synthetic:
        yield from ("", "**SYNTHETIC compute**: sleeps; parameters and traffic are real.")
    yield from ("", f"**{_esc(findings.answer(analysis))}**")
    failed = [findings.trial_line(t) for t in analysis.trials if t.status != "done"]
    yield from _items([*failed, *analysis.quality.warnings], "> ")
    if analysis.points:
        yield from _table(*text.key_table(analysis.points))
        yield from ("", _esc(text.sentence(text.COLUMNS_NOTE)))
    yield from _items(map(text.sentence, findings.fit_lines(analysis.fits)))
    for about, found in (("Inference", analysis.inference), ("Training settings", analysis.training)):
        if found:
            yield from ("", f"### {about}")
    if analysis.inference:
        yield from _table(*cases.inference_table(analysis.inference))
    if analysis.training:
        yield from _table(*cases.training_table(analysis.training))
    yield from _items(map(cases.largest_line, analysis.largest_batch))
    fallen = [p for p in analysis.points if p.loss is not None and p.world_size > 1]
    if fallen:
        yield from _waterfall(max(fallen, key=lambda p: p.world_size))
    if analysis.verdicts:
        yield from ("", "### What limits it, and what to try", "")
        for verdict in analysis.verdicts:
            yield from _verdict(verdict)
    if analysis.hosts:
        yield from ("", "### Hosts")
        yield from _items(map(text.sentence, host_lines(analysis.hosts, SHOWN)))
        yield from _table(*host_table(analysis.hosts, SHOWN))
    yield from _folded("Conditions", [f"{name}: {value}" for name, value in conditions(run, plan)])
    sure = [*findings.measured_lines(analysis.quality), *fabric_lines(analysis.fabric)]
    yield from _folded("How sure, and the fabric", sure)


def _waterfall(point: Point) -> Iterator[str]:
    if point.loss is None:
        return
    yield from ("", f"### Where the efficiency goes, {text.ranks(point.world_size)}", "", "```text")
    yield from (_plain(line) for line in waterfall_lines(point.loss, point.efficiency))
    yield "```"


def _verdict(verdict: Verdict) -> Iterator[str]:
    title = text.sentence(findings.verdict_title(verdict))[:-1]
    yield f"- **{_esc(title)}** (confidence {_esc(verdict.confidence)})"
    yield from (f"  - {_esc(evidence)}" for evidence in verdict.evidence)
    for remedy in verdict.try_:
        what, *code = [_code(line) for line in (remedy.overrides, remedy.code) if line] or [""]
        in_code = f", in code {code[0]}" if code else ""
        yield f"  - try {what}{_esc(findings.gain(remedy))}{in_code}"


def _comparison(comparison: Comparison) -> Iterator[str]:
    base, other = versus.run_names(comparison)
    yield f"## {_esc(f'{other} against {base}')}"
    yield from ("", f"**{_esc(versus.answer(comparison))}**")
    if comparison.cases:
        yield from _table(*cases.comparison_table(comparison))
    if comparison.points:
        columns = (
            ("ranks", ""),
            ("other / base", ""),
            ("a rank alone", ""),
            ("", ""),
            ("most of it", "ms a step"),
        )
        rows = []
        for p in comparison.points:
            clear = text.undistinguished(p.ratio, distinguishable=p.distinguishable)
            causes = ", ".join(
                f"{text.cause_name(cause)} {text.signed(text.quantity(value))}"
                for cause, value in versus.largest_causes(p.causes, 2)
            )
            ratios = (text.quantity(p.ratio), text.quantity(p.control))
            rows.append((str(p.world_size), *ratios, clear, causes))
        yield from _table(columns, rows)
    yield ""


def _table(columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    heads = [_esc(f"{name} ({unit})" if unit else name) for name, unit in columns]
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join('---:' for _ in heads)}|"
    yield from (f"| {' | '.join(map(_esc, row))} |" for row in rows)


def _items(lines: Iterable[str], lead: str = "") -> Iterator[str]:
    lines = tuple(lines)
    if lines:
        yield ""
    yield from (f"{lead}- {_esc(line)}" for line in lines)


def _folded(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", f"<details><summary>{_esc(title)}</summary>")
        yield from _items(lines)
        yield from ("", "</details>")


def _plain(line: Text) -> str:
    return text.plain(line.plain).rstrip()


def _code(outside: str) -> str:
    said = " ".join(text.plain(outside).split()).replace("`", "'")
    return f"`{said}`"


def _esc(outside: str) -> str:
    """Outside text on one line that Markdown takes for text."""
    return _MARKUP.sub(r"\\\1", " ".join(text.plain(outside).split()))
