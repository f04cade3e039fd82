"""The report of one run as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.machines import Machine
from scaling.analysis.results import (
    Analysis,
    Memory,
    Point,
    Remedy,
    RooflineResult,
    RunInfo,
    StepHistory,
    Timeline,
    Verdict,
)
from scaling.analysis.traced import Traced
from scaling.plan import Plan
from scaling.report import cases, findings, text
from scaling.report import traced as shown
from scaling.report.document import (
    Figures,
    anchor,
    contents,
    document,
    esc,
    items,
    lead,
    note,
    pair,
    pairs,
    section,
    table,
)
from scaling.report.machines import machine_table
from scaling.report.plots.base import Plot
from scaling.report.plots.batches import latency_by_batch, throughput_by_batch
from scaling.report.plots.efficiency import scaling_curve
from scaling.report.plots.fabric import fabric
from scaling.report.plots.roofline import roofline
from scaling.report.plots.steps import history, parts, timeline
from scaling.report.plots.waterfall import waterfall

HOW_SURE = "How sure"


def page(
    analysis: Analysis,
    plan: Plan,
    timelines: tuple[Timeline, ...],
    histories: tuple[StepHistory, ...] = (),
    machines: tuple[Machine, ...] = (),
) -> str:
    """The report of one run, as the text of an HTML file."""
    figures = Figures()
    sections = _sections(analysis, plan, timelines, histories, machines, figures)
    run = analysis.run
    body = (
        _title(run),
        lead(findings.answer(analysis), _sureness(analysis)),
        contents(sections),
        *sections,
    )
    return document(f"{run.model} on {run.topology}", "".join(body), figures)


def figures_of(
    analysis: Analysis, plan: Plan, timelines: tuple[Timeline, ...], histories: tuple[StepHistory, ...]
) -> tuple[Plot, ...]:
    """What the page of a run draws."""
    figures = Figures()
    _sections(analysis, plan, timelines, histories, (), figures)
    return tuple(figures.drawn)


def _sections(
    analysis: Analysis,
    plan: Plan,
    timelines: tuple[Timeline, ...],
    histories: tuple[StepHistory, ...],
    machines: tuple[Machine, ...],
    figures: Figures,
) -> list[str]:
    found = (
        section("Trials that did not finish", items(_unfinished(analysis), "warnings")),
        section("Key figures", _key_figures(analysis.points)),
        section("Inference", _inference(analysis, figures)),
        section("Training settings", _training(analysis, figures)),
        section("Largest batch", items(map(cases.largest_line, analysis.largest_batch))),
        section("Cases that were not measured", items(cases.failures(analysis))),
        section("Scaling", figures.add(scaling_curve([("", analysis.points)]))),
        section("Where the efficiency goes", _waterfalls(analysis.points, figures)),
        section("What limits it, and what to try", "".join(map(_verdict, analysis.verdicts))),
        section("One typical step", _timelines(timelines, figures)),
        section("Parts of a step", _parts(analysis.points, figures)),
        section("Communication", _communication(analysis, plan, figures)),
        *(section(shown.title(t)[0].upper() + shown.title(t)[1:], _traced(t)) for t in analysis.trace or ()),
        section("Roofline", _roofline(analysis.roofline, figures)),
        section("Steps as they ran", _history(analysis, histories, figures)),
        section("Conditions", pairs(text.conditions(analysis.run, plan))),
        section("Machine and environment", _machines(machines, plan)),
        section(HOW_SURE, _quality(analysis)),
    )
    return [one for one in found if one]


def _title(run: RunInfo) -> str:
    badge = '<strong class="badge">SYNTHETIC compute</strong> ' if run.synthetic else ""
    about = f"{run.precision}, {run.mode} scaling, {run.backend} on {run.device}"
    when = f"<time>{esc(text.moment(run.started))}</time>"
    title = esc(f"{run.model} on {run.topology}")
    return f'<header><h1>{title}</h1><p class="about">{badge}{esc(about)}, {when}</p></header>'


def _sureness(analysis: Analysis) -> str:
    """How well the answer is known, and how many things stand against it."""
    quality = analysis.quality
    said = [esc(text.sentence(line)) for line in quality.reached]
    if quality.warnings:
        many = text.count(len(quality.warnings), "warning")
        said.append(f'<a href="#{anchor(HOW_SURE)}">{many}</a>')
    return f'<p class="note reached">{" ".join(said)}</p>' if said else ""


def _key_figures(points: Sequence[Point]) -> str:
    if not points:
        return ""
    return table(*text.key_table(points), label="Key figures") + note(text.COLUMNS_NOTE)


def _inference(analysis: Analysis, figures: Figures) -> str:
    if not analysis.inference:
        return ""
    found = table(*cases.inference_table(analysis.inference), label="Inference")
    drawn = (
        figures.add(throughput_by_batch(analysis.inference), "Throughput"),
        figures.add(latency_by_batch(analysis.inference), "Latency"),
    )
    return found + note(cases.INFERENCE_NOTE) + pair(drawn)


def _training(analysis: Analysis, figures: Figures) -> str:
    if not analysis.training:
        return ""
    found = table(*cases.training_table(analysis.training), label="Training settings")
    drawn = figures.add(throughput_by_batch(analysis.training), "Throughput")
    return found + note(cases.TRAINING_NOTE) + drawn


def _waterfalls(points: Sequence[Point], figures: Figures) -> str:
    """The largest world size over the whole width, the others side by side below it."""
    largest, *others = [
        figures.add(waterfall(p), text.ranks(p.world_size))
        for p in sorted(points, key=lambda p: -p.world_size)
        if p.loss is not None
    ] or [""]
    drawn = largest + pair(reversed(others))
    late = (
        f"{text.ranks(p.world_size)}: {findings.straggler_line(p.straggler)}" for p in points if p.straggler
    )
    return drawn + items(late)


def _parts(points: Sequence[Point], figures: Figures) -> str:
    rows = [(text.ranks(p.world_size), p.parts_ms) for p in points]
    figure = figures.add(parts(rows))
    if not figure:
        return ""
    named = [(key, name) for key, name in text.PARTS.items() if any(getattr(p, key) for _, p in rows)]
    cells = [(name, *(text.cell(getattr(p, key)) for _, p in rows)) for key, name in named]
    columns = [("part", ""), *((name, "ms") for name, _ in rows)]
    found = table(columns, cells, label="Parts of a step")
    return f"{figure}<details><summary>The numbers, with their intervals</summary>{found}</details>"


def _verdict(verdict: Verdict) -> str:
    title = text.sentence(findings.verdict_title(verdict))[:-1]
    evidence = items(verdict.evidence)
    tries = "".join(map(_remedy, verdict.try_))
    tries = f"<h4>Try</h4><ul class='try'>{tries}</ul>" if tries else ""
    sure = f'<span class="sure">confidence: {esc(verdict.confidence)}</span>'
    return f'<article class="card"><h3>{esc(title)}</h3>{sure}{evidence}{tries}</article>'


def _remedy(remedy: Remedy) -> str:
    gain = findings.gain(remedy)
    what = f"<code>{esc(remedy.overrides)}</code>{esc(gain)}" if remedy.overrides else esc(gain.lstrip(": "))
    code = f"<pre><code>{esc(remedy.code)}</code></pre>" if remedy.code else ""
    return f"<li>{what}{code}</li>"


def _communication(analysis: Analysis, plan: Plan, figures: Figures) -> str:
    with_comm = {p.world_size: p.comm for p in analysis.points if p.comm}
    source = plan.spec.topology.link.source
    lines = items(f"{text.ranks(n)}: {findings.comm_line(comm, source)}" for n, comm in with_comm.items())
    largest = with_comm[max(with_comm)] if with_comm else None
    curves = []
    for level in analysis.fabric.levels:
        comm = with_comm.get(level.world_size, largest)
        sizes = [bucket.bytes for bucket in comm.buckets] if comm else []
        title = f"{level.name}, {text.ranks(level.world_size)}"
        curves.append(figures.add(fabric(level, sizes), title))
    return lines + pair(curves)


def _roofline(found: RooflineResult | None, figures: Figures) -> str:
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
    operators = table(columns, rows, label="Operators")
    details = f"<details><summary>The operators that must take longest</summary>{operators}</details>"
    return items([found.said]) + figures.add(roofline(found)) + details


def _traced(traced: Traced) -> str:
    found = table(*shown.rank_table(traced), label="Ranks")
    if traced.collectives:
        head = "Collectives, matched over ranks"
        found += f"<h3>{head}</h3>{table(*shown.collective_table(traced), label=head)}"
    tables = shown.hta_tables(traced)
    if tables is not None:
        found += "<h3>HolisticTraceAnalysis' quantities, by its definitions</h3>"
        found += "".join(table(*one) for one in tables)
    return found + items(shown.lines(traced))


def _timelines(timelines: Iterable[Timeline], figures: Figures) -> str:
    return "".join(figures.add(timeline(t), text.ranks(t.world_size)) for t in timelines)


def _history(analysis: Analysis, histories: Sequence[StepHistory], figures: Figures) -> str:
    """The largest world size: what disturbs it disturbs most."""
    if not histories:
        return ""
    largest = max(histories, key=lambda h: h.world_size)
    mean = next((p.step_ms for p in analysis.points if p.world_size == largest.world_size), None)
    return figures.add(history(largest, mean), text.ranks(largest.world_size))


def _machines(machines: tuple[Machine, ...], plan: Plan) -> str:
    found = machine_table(machines, plan)
    return "" if found is None else table(*found, label="Machine and environment", kind="words")


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
    warnings = items(map(text.sentence, analysis.quality.warnings), "warnings")
    lines = (*findings.measured_lines(analysis.quality), *checks)
    return warnings + items(map(text.sentence, lines))
