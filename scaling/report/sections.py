"""The sections of a run's page: results in, HTML out, empty where there is nothing to show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scaling.analysis.machines import Machine
from scaling.analysis.results import (
    Analysis,
    Host,
    Memory,
    Point,
    Quality,
    Remedy,
    RooflineResult,
    StepHistory,
    Timeline,
    TrialOutcome,
    Verdict,
)
from scaling.analysis.traced import Traced
from scaling.plan import Plan
from scaling.report import cases, findings, text
from scaling.report import traced as shown
from scaling.report.document import Figures, anchor, esc, items, note, pair, table
from scaling.report.fabric import nccl_lines
from scaling.report.hosts import NOTE, host_lines, host_table
from scaling.report.machines import machine_table
from scaling.report.plots.batches import latency_by_batch, throughput_by_batch
from scaling.report.plots.efficiency import scaling_curve
from scaling.report.plots.fabric import fabric
from scaling.report.plots.roofline import roofline
from scaling.report.plots.steps import history, parts, timeline
from scaling.report.plots.waterfall import waterfall


def key_figures(points: Sequence[Point]) -> str:
    """A row a world size."""
    if not points:
        return ""
    return table(*text.key_table(points), label="Key figures") + note(text.COLUMNS_NOTE)


def efficiency(analysis: Analysis, figures: Figures) -> str:
    """Efficiency over world size, and laws fitted to it."""
    drawn = figures.add(scaling_curve([("", analysis.points)]))
    return drawn + items(map(text.sentence, findings.fit_lines(analysis.fits)))


def inference(analysis: Analysis, figures: Figures) -> str:
    """Latency and throughput by batch."""
    if not analysis.inference:
        return ""
    found = table(*cases.inference_table(analysis.inference), label="Inference")
    drawn = (
        figures.add(throughput_by_batch(analysis.inference), "Throughput"),
        figures.add(latency_by_batch(analysis.inference), "Latency"),
    )
    return found + note(cases.INFERENCE_NOTE) + pair(drawn)


def training(analysis: Analysis, figures: Figures) -> str:
    """Training settings beside each other."""
    if not analysis.training:
        return ""
    found = table(*cases.training_table(analysis.training), label="Training settings")
    drawn = figures.add(throughput_by_batch(analysis.training), "Throughput")
    return found + note(cases.TRAINING_NOTE) + drawn


def waterfalls(points: Sequence[Point], figures: Figures) -> str:
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


def verdicts(found: Iterable[Verdict]) -> str:
    """A card a verdict: evidence, and what to try."""
    return "".join(map(_card, found))


def _card(verdict: Verdict) -> str:
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


def typical_steps(timelines: Iterable[Timeline], figures: Figures) -> str:
    """One step a world size, rank by rank."""
    return "".join(figures.add(timeline(t), text.ranks(t.world_size)) for t in timelines)


def mean_parts(points: Sequence[Point], figures: Figures, *, traced: bool) -> str:
    """The parts of a step as bars, and folded away as numbers."""
    rows = [(text.ranks(p.world_size), p.parts_ms) for p in points]
    figure = figures.add(parts(rows, traced=traced))
    if not figure:
        return ""
    named = [(key, name) for key, name in text.PARTS.items() if any(getattr(p, key) for _, p in rows)]
    cells = [(name, *(text.cell(getattr(p, key)) for _, p in rows)) for key, name in named]
    columns = [("part", ""), *((name, "ms") for name, _ in rows)]
    found = table(columns, cells, label="Parts of a step")
    return f"{figure}<details><summary>The numbers, with their intervals</summary>{found}</details>"


def communication(analysis: Analysis, plan: Plan, figures: Figures) -> str:
    """What a step sends, and where its buckets lie on the link's curve."""
    with_comm = {p.world_size: p.comm for p in analysis.points if p.comm}
    source = plan.spec.topology.link.source
    said = [f"{text.ranks(n)}: {findings.comm_line(comm, source)}" for n, comm in with_comm.items()]
    lines = items([*said, *nccl_lines(analysis.fabric.nccl)])
    largest = with_comm[max(with_comm)] if with_comm else None
    curves = []
    for level in analysis.fabric.levels:
        comm = with_comm.get(level.world_size, largest)
        sizes = [bucket.bytes for bucket in comm.buckets] if comm else []
        title = f"{level.name}, {text.ranks(level.world_size)}"
        curves.append(figures.add(fabric(level, sizes), title))
    return lines + pair(curves)


def from_traces(traced: Traced) -> str:
    """What profiler traces show beyond a run's own records."""
    found = table(*shown.rank_table(traced), label="Ranks")
    if traced.collectives:
        head = "Collectives, matched over ranks"
        found += f"<h3>{head}</h3>{table(*shown.collective_table(traced), label=head)}"
    tables = shown.hta_tables(traced)
    if tables is not None:
        found += "<h3>HolisticTraceAnalysis' quantities, by its definitions</h3>"
        found += "".join(table(*one) for one in tables)
    return found + items(shown.lines(traced))


def hosts(found: Sequence[Host]) -> str:
    """Which host stands out, and each beside the median one."""
    if not found:
        return ""
    said = items(map(text.sentence, host_lines(found)))
    return said + table(*host_table(found), label="Hosts") + note(text.sentence(NOTE))


def ceilings(found: RooflineResult | None, figures: Figures) -> str:
    """A step against what the device's measured ceilings allow."""
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


def as_they_ran(analysis: Analysis, histories: Sequence[StepHistory], figures: Figures) -> str:
    """The largest world size: what disturbs it disturbs most."""
    if not histories:
        return ""
    largest = max(histories, key=lambda h: h.world_size)
    mean = next((p.step_ms for p in analysis.points if p.world_size == largest.world_size), None)
    return figures.add(history(largest, mean), text.ranks(largest.world_size))


def environment(machines: tuple[Machine, ...], plan: Plan) -> str:
    """What the ranks ran on, alike hosts in one column."""
    found = machine_table(machines, plan)
    return "" if found is None else table(*found, label="Machine and environment", kind="words")


def unfinished(trials: Iterable[TrialOutcome]) -> str:
    """Trials that did not come to their end, and why."""
    return items((findings.trial_line(t) for t in trials if t.status != "done"), "warnings")


def how_sure(analysis: Analysis, steps: str) -> str:
    """Warnings, then checks. `steps`: the title of the section where contended steps are crossed, empty without one."""
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
    return warnings + _contended(analysis.quality, steps) + items(map(text.sentence, lines))


def _contended(quality: Quality, steps: str) -> str:
    """Where to see when other programs ran."""
    if not quality.contended_blocks or not steps:
        return ""
    many = text.count(quality.contended_blocks, "compute block")
    link = f'<a href="#{anchor(steps)}">{esc(steps)}</a>'
    return f'<p class="note">Contended: {esc(many)}; the steps near them are crossed in {link}.</p>'
