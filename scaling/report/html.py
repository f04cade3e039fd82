"""The report as one HTML file that needs nothing from outside: plotly, data and styles are inside."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence

from plotly.offline.offline import get_plotlyjs

from scaling.analysis.results import Analysis, Comparison, Parts, Point, Remedy, RunInfo, Timeline, Verdict
from scaling.plan import Plan
from scaling.report import findings, plots, text

CAUSES_SHOWN = 6
"""Causes of a difference that a comparison draws for each world size."""


_STYLE = """
:root, .paper {
  --bg: #ffffff; --fg: #1c2430; --muted: #667080; --grid: #e3e7ec; --panel: #f6f7f9;
  --hatch: rgba(255,255,255,.5);
  --accent: #1f5fae; --accent-soft: rgba(31,95,174,.24);
  --second: #b3570a; --second-soft: rgba(179,87,10,.22);
  --ideal: #aeb6c0; --loss: #c2483b; --gain: #2f8560;
  --input: #8a93a0; --forward: #8fb8e6; --backward: #2c6bb3; --optimizer: #5d4a9c;
  --exposed-transfer: #d9772b; --exposed-skew: #b23a55; --host: #56606d; --bucket: #e0a458;
  --on-input: #fff; --on-forward: #12263c; --on-backward: #fff; --on-optimizer: #fff;
  --on-exposed-transfer: #2a1402; --on-exposed-skew: #fff; --on-host: #fff; --on-bucket: #2a1a02;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --bg: #14181e; --fg: #e4e8ee; --muted: #98a2b0; --grid: #2b323c; --panel: #1c222a;
    --hatch: rgba(20,24,30,.45);
    --accent: #6aa9f0; --accent-soft: rgba(106,169,240,.28);
    --second: #eda35a; --second-soft: rgba(237,163,90,.26);
    --ideal: #5b6572; --loss: #e0766a; --gain: #5dbb8f;
    --input: #7c8795; --forward: #a5c8f0; --backward: #4a86cc; --optimizer: #9284cf;
    --exposed-transfer: #e58c45; --exposed-skew: #d4637d; --host: #5f6a78; --bucket: #dcae70;
    --on-input: #10151b; --on-optimizer: #10151b; --on-backward: #fff; --on-exposed-skew: #1d070d;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 48px 24px 64px; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0; letter-spacing: -.015em; }
h2 { font-size: 1.2rem; margin: 0 0 12px; letter-spacing: -.005em; }
h3 { font-size: 1rem; margin: 0 0 4px; }
h4 { font-size: .8rem; margin: 14px 0 4px; color: var(--muted); }
section { margin-top: 52px; }
.about { margin: 6px 0 0; color: var(--muted); }
.badge { color: var(--second); font-size: .85em; letter-spacing: .03em; margin-right: .5em; }
.answer { font-size: 1.3rem; line-height: 1.45; margin: 28px 0 0; padding-left: 18px;
  border-left: 4px solid var(--accent); max-width: 46em; text-wrap: pretty; }
.answer.bad { border-color: var(--loss); }
.note, figcaption, .sure { color: var(--muted); font-size: .85rem; }
.note { margin: 8px 0 0; }
figure { margin: 0; min-width: 0; }
figure + figure { margin-top: 32px; }
figcaption { margin-top: 6px; }
.pair { display: grid; gap: 36px 40px;
  grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); }
ul + .pair { margin-top: 24px; }
.pair figure + figure { margin-top: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; width: 100%; }
th, td { text-align: right; padding: 7px 12px; white-space: nowrap; font-weight: 400; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
thead th { font-weight: 600; vertical-align: top; border-bottom: 1px solid var(--muted); }
thead small { display: block; font-weight: 400; color: var(--muted); }
th:first-child { position: sticky; left: 0; background: var(--bg); }
tbody tr + tr > * { border-top: 1px solid var(--grid); }
ul { margin: 8px 0; padding-left: 1.2em; }
li + li { margin-top: 4px; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 0; font-size: .82rem; }
.legend li { margin: 0; white-space: nowrap; }
.legend i { display: inline-block; width: 13px; height: 13px; margin-right: 6px; vertical-align: -2px;
  background-color: var(--hue); print-color-adjust: exact; }
.input { --hue: var(--input); background-image: radial-gradient(var(--hatch) 1px, transparent 1.3px);
  background-size: 5px 5px; }
.forward { --hue: var(--forward); }
.backward { --hue: var(--backward); }
.bucket { --hue: var(--bucket); }
.exposed-transfer { --hue: var(--exposed-transfer);
  background-image: repeating-linear-gradient(135deg, var(--hatch) 0 1px, transparent 1px 5px); }
.exposed-skew { --hue: var(--exposed-skew);
  background-image: repeating-linear-gradient(45deg, var(--hatch) 0 1px, transparent 1px 5px),
    repeating-linear-gradient(135deg, var(--hatch) 0 1px, transparent 1px 5px); }
.optimizer { --hue: var(--optimizer);
  background-image: repeating-linear-gradient(0deg, var(--hatch) 0 1px, transparent 1px 4px); }
.host { --hue: var(--host);
  background-image: repeating-linear-gradient(90deg, var(--hatch) 0 1px, transparent 1px 4px); }
time { white-space: nowrap; }
.warnings { list-style: none; padding: 10px 16px;
  border-left: 4px solid var(--second); background: var(--panel); }
.card { background: var(--panel); border: 1px solid var(--grid); border-radius: 8px; padding: 16px 20px; }
.card + .card { margin-top: 16px; }
code { font: .9em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre { margin: 4px 0 0; white-space: pre-wrap; color: var(--muted); }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top; }
.words th:first-child, .words td:last-child { white-space: nowrap; }
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--muted); font-size: .9rem; }
details .wide { margin-top: 8px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 5px 24px; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; min-width: 0; }
@media (max-width: 600px) {
  main { padding: 28px 16px 40px; }
  h1 { font-size: 1.4rem; }
  table { font-size: .84rem; }
  th, td { padding: 6px 7px; }
  .answer { font-size: 1.1rem; padding-left: 14px; }
  section { margin-top: 40px; }
  .card { padding: 14px 16px; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 8px; }
}
@media print {
  main { max-width: none; padding: 0; }
  .pair { display: block; }
  table { font-size: .72rem; }
  th, td { padding: 4px 6px; }
  .pair figure + figure { margin-top: 24px; }
  figure, .card, table { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  section { margin-top: 28px; }
}
"""
"""Every colour of the figures is a variable here; `.paper` keeps the light ones at hand for printing."""

_SCRIPT = """
'use strict';
const figures = JSON.parse(document.getElementById('figures').textContent);
const PAPER_PX = 660;  // what an A4 or letter page leaves between its margins

function coloured(value, style) {
  if (typeof value === 'string') {
    return value[0] === '$' ? style.getPropertyValue('--' + value.slice(1)).trim() || value : value;
  }
  if (Array.isArray(value)) return value.map(v => coloured(v, style));
  if (value && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, style)]));
  }
  return value;
}

function draw(source, size) {
  const style = getComputedStyle(source);
  figures.forEach((figure, index) => {
    const place = document.getElementById('plot-' + index);
    const { data, layout } = coloured(figure, style);
    Plotly.react(place, data, { ...layout, ...size }, { responsive: true, displayModeBar: false });
  });
}

const onScreen = () => draw(document.documentElement, { autosize: true });
onScreen();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', onScreen);
addEventListener('beforeprint', () => draw(document.getElementById('on-paper'), { width: PAPER_PX }));
addEventListener('afterprint', onScreen);
"""
"""Draws the figures in the colours of the page, again when the scheme changes, and for paper."""


def page(analysis: Analysis, plan: Plan, timelines: tuple[Timeline, ...]) -> str:
    """The report of one run, as the text of an HTML file."""
    run = analysis.run
    figures = _Figures()
    body = (
        _title(f"{run.model} on {run.topology}", run),
        _lead(findings.answer(analysis)),
        _section("Key figures", _key_figures(analysis.points)),
        _section("Scaling", figures.add(plots.scaling_curve([("", analysis.points)]))),
        _section("Where the efficiency goes", _waterfalls(analysis.points, figures)),
        _section("Parts of a step", _parts(analysis.points, figures)),
        _section("What limits it, and what to try", "".join(map(_verdict, analysis.verdicts))),
        _section("Communication", _communication(analysis, plan, figures)),
        _section("One typical step", _timelines(timelines, figures)),
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
        _section("Throughput", _ratios(comparison)),
        _section("Scaling", figures.add(curve)),
        _section("What makes the difference", _differences(comparison, figures)),
        _section("Parts of a step", figures.add(plots.parts(_paired_parts(base, other)))),
        _section("Conditions", _both_conditions(comparison)),
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
<style>{_STYLE}</style>
</head>
<body>
<main>{body}</main>
<div id="on-paper" class="paper" hidden></div>
<script type="application/json" id="figures">{figures.json()}</script>
<script>{_plotly()}</script>
<script>{_SCRIPT}</script>
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
    gain = f": predicted gain {_esc(text.percent(remedy.predicted_gain))}" if remedy.predicted_gain else ""
    code = f"<pre><code>{_esc(remedy.code)}</code></pre>" if remedy.code else ""
    return f"<li><code>{_esc(remedy.overrides)}</code>{gain}{code}</li>"


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
