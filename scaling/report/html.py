"""The report as one HTML file that needs nothing from outside: plotly, data and styles are inside."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Sequence

from plotly.offline.offline import get_plotlyjs

from scaling.analysis.results import (
    Analysis,
    Comparison,
    Memory,
    Parts,
    Point,
    PointComparison,
    Remedy,
    RooflineResult,
    RunInfo,
    Timeline,
    Verdict,
)
from scaling.analysis.traced import Traced
from scaling.plan import Plan
from scaling.report import cases, findings, plots, rooflines, text
from scaling.report import traced as shown
from scaling.report.page import SCRIPT, STYLE

CAUSES_SHOWN = 6
"""Causes of a difference that a comparison draws for each world size."""
"""Draws the figures in the colours of the page, again when the scheme changes, and for paper."""


def page(analysis: Analysis, plan: Plan, timelines: tuple[Timeline, ...]) -> str:
    """The report of one run, as the text of an HTML file."""
    run = analysis.run
    figures = _Figures()
    body = (
        _title(f"{run.model} on {run.topology}", run),
        _lead(findings.answer(analysis)),
        _section("Key figures", _key_figures(analysis.points)),
        _section("Inference", _inference(analysis, figures)),
        _section("Training settings", _training(analysis, figures)),
        _section("Largest batch", _items(map(cases.largest_line, analysis.largest_batch))),
        _section("Cases that were not measured", _items(cases.failures(analysis))),
        _section("Scaling", figures.add(plots.scaling_curve([("", analysis.points)]))),
        _section("Where the efficiency goes", _waterfalls(analysis.points, figures)),
        _section("Parts of a step", _parts(analysis.points, figures)),
        _section("What limits it, and what to try", "".join(map(_verdict, analysis.verdicts))),
        _section("Communication", _communication(analysis, plan, figures)),
        *(_section(shown.title(t)[0].upper() + shown.title(t)[1:], _traced(t)) for t in analysis.trace or ()),
        _section("One typical step", _timelines(timelines, figures)),
        _section("Roofline", _roofline(analysis.roofline, figures)),
        _section("Conditions", _pairs(text.conditions(run, plan))),
        _section("Trials that did not finish", _items(_unfinished(analysis))),
        _section("Quality", _quality(analysis)),
    )
    return _document(f"{run.model} on {run.topology}", "".join(body), figures)


def comparison_page(comparison: Comparison, base: Analysis, other: Analysis) -> str:
    """The report of two runs side by side, as the text of an HTML file."""
    names = findings.run_names(comparison)
    figures = _Figures()
    curve = plots.scaling_curve([(f"base: {names[0]}", base.points), (f"other: {names[1]}", other.points)])
    body = (
        _title(f"{names[1]} against {names[0]}", None),
        _lead(findings.comparison_answer(comparison), bad=not comparison.comparable),
        _section("Not comparable", _items([] if comparison.comparable else comparison.reasons)),
        _section("Cases", _table(*cases.comparison_table(comparison)) if comparison.cases else ""),
        _section("Throughput", _ratios(comparison)),
        _section("Scaling", figures.add(curve)),
        _section("What makes the difference", _differences(comparison, figures)),
        _section("Compute and fabric", _items(_of_points(comparison, findings.split_line))),
        _section("Cost", _items(_of_points(comparison, lambda p: "; ".join(findings.cost_lines(p.cost))))),
        _section("Roofline", _items(comparison.roofline)),
        _section("Parts of a step", figures.add(plots.parts(_paired_parts(base, other)))),
        _section("Conditions", _both_conditions(comparison)),
        _section("What else differs", _settings(comparison)),
    )
    return _document(f"{names[1]} against {names[0]}", "".join(body), figures)


class _Figures:
    """Collects what the page's script will draw; hands out the places for it."""

    def __init__(self) -> None:
        self.drawn: list[plots.Plot] = []

    def add(self, plot: plots.Plot | None, title: str = "") -> str:
        """The `<figure>` of a plot; empty without one."""
        if plot is None:
            return ""
        self.drawn.append(plot)
        head = f"<h3>{_esc(title)}</h3>" if title else ""
        size = f'style="height:{plot.height_px}px"'
        label = f'role="img" aria-label="{_esc(plot.label)}"'
        place = f'<div class="plot" id="plot-{len(self.drawn) - 1}" {label} {size}></div>'
        caption = f"<figcaption>{_esc(plot.caption)}</figcaption>"
        inside = f"{head}{_legend(plot.legend)}{place}{caption}"
        return f'<figure aria-label="{_esc(title or plot.label)}">{inside}</figure>'

    def json(self) -> str:
        """Their data; `<` is escaped, so that no text in it can end the script element."""
        found = [{"data": p.data, "layout": p.layout | {"height": p.height_px}} for p in self.drawn]
        return json.dumps(found, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _document(title: str, body: str, figures: _Figures) -> str:
    # The policy lets the page run what is in it and fetch nothing at all.
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<link rel="icon" href="data:,">
<title>{_esc(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>{body}</main>
<div id="on-paper" class="paper" hidden></div>
<script type="application/json" id="figures">{figures.json()}</script>
<script>{_plotly()}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _plotly() -> str:
    return str(get_plotlyjs())  # type: ignore[no-untyped-call]  # plotly declares no types here


def _title(title: str, run: RunInfo | None) -> str:
    if run is None:
        return f"<header><h1>{_esc(title)}</h1></header>"
    badge = '<strong class="badge">SYNTHETIC compute</strong> ' if run.synthetic else ""
    about = f"{run.precision}, {run.mode} scaling, {run.backend} on {run.device}"
    when = f"<time>{_esc(text.moment(run.started))}</time>"
    return f'<header><h1>{_esc(title)}</h1><p class="about">{badge}{_esc(about)}, {when}</p></header>'


def _lead(answer: str, *, bad: bool = False) -> str:
    return f'<p class="answer{" bad" if bad else ""}">{_esc(answer)}</p>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{_esc(title)}</h2>{content}</section>" if content else ""


def _key_figures(points: Sequence[Point]) -> str:
    if not points:
        return ""
    return _table(*text.key_table(points)) + f'<p class="note">{_esc(text.COLUMNS_NOTE)}</p>'


def _inference(analysis: Analysis, figures: _Figures) -> str:
    if not analysis.inference:
        return ""
    table = _table(*cases.inference_table(analysis.inference))
    note = f'<p class="note">{_esc(cases.INFERENCE_NOTE)}</p>'
    drawn = figures.add(plots.throughput_by_batch(analysis.inference), "Throughput")
    drawn += figures.add(plots.latency_by_batch(analysis.inference), "Latency")
    return table + note + (f'<div class="pair">{drawn}</div>' if drawn else "")


def _training(analysis: Analysis, figures: _Figures) -> str:
    if not analysis.training:
        return ""
    table = _table(*cases.training_table(analysis.training))
    note = f'<p class="note">{_esc(cases.TRAINING_NOTE)}</p>'
    return table + note + figures.add(plots.throughput_by_batch(analysis.training), "Throughput")


def _table(columns: Iterable[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names its row; scrolls by itself where it is too wide."""
    heads = "".join(f'<th scope="col">{_esc(n)}<small>{_esc(u)}</small></th>' for n, u in columns)
    body = "".join(
        f'<tr><th scope="row">{_esc(row[0])}</th>{"".join(f"<td>{_esc(c)}</td>" for c in row[1:])}</tr>'
        for row in rows
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    found = "".join(
        f'<li><i class="{key.replace("_", "-")}"></i>{_esc(label)}</li>' for key, label in entries
    )
    return f'<ul class="legend">{found}</ul>' if found else ""


def _waterfalls(points: Sequence[Point], figures: _Figures) -> str:
    drawn = (
        figures.add(plots.waterfall(p.loss, p.efficiency), text.ranks(p.world_size)) for p in points if p.loss
    )
    found = "".join(drawn)
    late = [
        f"{text.ranks(p.world_size)}: {findings.straggler_line(p.straggler)}" for p in points if p.straggler
    ]
    return f'<div class="pair">{found}</div>{_items(late)}' if found else _items(late)


def _parts(points: Sequence[Point], figures: _Figures) -> str:
    rows = [(text.ranks(p.world_size), p.parts_ms) for p in points]
    figure = figures.add(plots.parts(rows))
    if not figure:
        return ""
    named = [(key, name) for key, name in text.PARTS.items() if any(getattr(p, key) for _, p in rows)]
    cells = [(name, *(text.cell(getattr(p, key)) for _, p in rows)) for key, name in named]
    table = _table([("part", ""), *((name, "ms") for name, _ in rows)], cells)
    return f"{figure}<details><summary>The numbers, with their intervals</summary>{table}</details>"


def _verdict(verdict: Verdict) -> str:
    title = text.sentence(findings.verdict_title(verdict))[:-1]
    evidence = _items(verdict.evidence)
    tries = "".join(map(_remedy, verdict.try_))
    tries = f"<h4>Try</h4><ul class='try'>{tries}</ul>" if tries else ""
    sure = f'<span class="sure">confidence: {_esc(verdict.confidence)}</span>'
    return f'<article class="card"><h3>{_esc(title)}</h3>{sure}{evidence}{tries}</article>'


def _remedy(remedy: Remedy) -> str:
    overrides = f"<code>{_esc(remedy.overrides)}</code>" if remedy.overrides else ""
    code = f"<pre><code>{_esc(remedy.code)}</code></pre>" if remedy.code else ""
    return f"<li>{overrides}{_esc(findings.gain(remedy))}{code}</li>"


def _communication(analysis: Analysis, plan: Plan, figures: _Figures) -> str:
    with_comm = {p.world_size: p.comm for p in analysis.points if p.comm}
    source = plan.spec.topology.link.source
    lines = _items(f"{text.ranks(n)}: {findings.comm_line(comm, source)}" for n, comm in with_comm.items())
    largest = with_comm[max(with_comm)] if with_comm else None
    curves = []
    for level in analysis.fabric.levels:
        comm = with_comm.get(level.world_size, largest)
        sizes = [bucket.bytes for bucket in comm.buckets] if comm else []
        title = f"{level.name}, {text.ranks(level.world_size)}"
        curves.append(figures.add(plots.fabric(level, sizes), title))
    drawn = "".join(curves)
    return lines + (f'<div class="pair">{drawn}</div>' if drawn else "")


def _roofline(found: RooflineResult | None, figures: _Figures) -> str:
    if found is None:
        return ""
    rows = [
        (
            f"{o.name} {o.layer}".strip(),
            str(o.count),
            f"{o.flops / 1e9:.3g}",
            text.number(o.least_ms.value),
            o.bound,
        )
        for o in found.top
    ]
    columns = (("operator", ""), ("calls", ""), ("work", "GFLOP"), ("at least", "ms"), ("bound", ""))
    details = (
        f"<details><summary>The operators that must take longest</summary>{_table(columns, rows)}</details>"
    )
    return _items([found.said]) + figures.add(rooflines.roofline(found)) + details


def _traced(traced: Traced) -> str:
    found = _table(*shown.rank_table(traced))
    if traced.collectives:
        found += f"<h3>Collectives, matched over ranks</h3>{_table(*shown.collective_table(traced))}"
    tables = shown.hta_tables(traced)
    if tables is not None:
        found += "<h3>HolisticTraceAnalysis' quantities, by its definitions</h3>"
        found += "".join(_table(*table) for table in tables)
    return found + _items(shown.lines(traced))


def _timelines(timelines: Iterable[Timeline], figures: _Figures) -> str:
    return "".join(figures.add(plots.timeline(t), text.ranks(t.world_size)) for t in timelines)


def _unfinished(analysis: Analysis) -> list[str]:
    return [findings.trial_line(t) for t in analysis.trials if t.status != "done"]


def _quality(analysis: Analysis) -> str:
    checks = []
    for p in analysis.points:
        if p.overhead.probe_over_plain:
            checks.append(
                f"{text.ranks(p.world_size)}: the probe's own cost is {findings.overhead_line(p.overhead)}"
            )
        if p.memory != Memory():
            checks.append(
                f"{text.ranks(p.world_size)}: memory {findings.memory_line(p.memory, analysis.run.device)}"
            )
        if p.loader:
            checks.append(f"{text.ranks(p.world_size)}: batches {findings.loader_line(p.loader)}")
        if line := findings.cost_line(p.cost):
            checks.append(f"{text.ranks(p.world_size)}: cost {line}")
        if p.closure:
            checks.append(f"{text.ranks(p.world_size)}: {findings.closure_line(p.closure)}")
    warnings = findings.quality_lines(analysis.quality)
    return _items(warnings, "warnings") + _items(checks)


def _ratios(comparison: Comparison) -> str:
    rows = [
        (
            str(p.world_size),
            text.quantity(p.ratio),
            text.quantity(p.control),
            _distinguished(measured=p.ratio is not None, distinguishable=p.distinguishable),
        )
        for p in comparison.points
    ]
    columns = (("ranks", ""), ("other / base", "throughput"), ("a rank alone", "1 but for drift"), ("", ""))
    return _table(columns, rows) if rows else ""


def _distinguished(*, measured: bool, distinguishable: bool) -> str:
    return "" if distinguishable else "not distinguishable" if measured else "not measured in both"


def _differences(comparison: Comparison, figures: _Figures) -> str:
    drawn = []
    for point in comparison.points:
        causes = findings.largest_causes(point.causes, CAUSES_SHOWN)
        if causes:
            drawn.append(figures.add(plots.differences(causes), text.ranks(point.world_size)))
    return f'<div class="pair">{"".join(drawn)}</div>' if drawn else ""


def _of_points(comparison: Comparison, line: Callable[[PointComparison], str]) -> list[str]:
    """A line a world size, where there is one."""
    found = ((p.world_size, line(p)) for p in comparison.points)
    return [f"{text.ranks(n)}: {said}" for n, said in found if said]


def _settings(comparison: Comparison) -> str:
    rows = [(s.key, s.base or text.NONE, s.other or text.NONE, s.of) for s in comparison.settings]
    columns = (("", ""), ("base", ""), ("other", ""), ("", ""))
    return f'<div class="words">{_table(columns, rows)}</div>' if rows else ""


def _paired_parts(base: Analysis, other: Analysis) -> list[tuple[str, Parts]]:
    others = {p.world_size: p.parts_ms for p in other.points}
    pairs = [(p.world_size, p.parts_ms, others[p.world_size]) for p in base.points if p.world_size in others]
    return [
        (f"{text.ranks(n)}, {name}", parts)
        for n, first, second in pairs
        for name, parts in (("base", first), ("other", second))
    ]


def _both_conditions(comparison: Comparison) -> str:
    base, other = text.conditions(comparison.base), text.conditions(comparison.other)
    rows = [(name, a, b, "" if a == b else "differs") for (name, a), (_, b) in zip(base, other, strict=True)]
    return f'<div class="words">{_table((("", ""), ("base", ""), ("other", ""), ("", "")), rows)}</div>'


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    found = "".join(f"<dt>{_esc(name)}</dt><dd>{_esc(value)}</dd>" for name, value in pairs)
    return f"<dl>{found}</dl>"


def _items(lines: Iterable[str], kind: str = "") -> str:
    found = "".join(f"<li>{_esc(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{found}</ul>' if found and kind else f"<ul>{found}</ul>" if found else ""


def _esc(outside: str) -> str:
    return html.escape(text.bound(text.plain(outside)))
