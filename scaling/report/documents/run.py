"""The report of one run, measured, by cases or from traces: one document, built once and drawn in every form."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from scaling.analysis import results
from scaling.analysis.results.machine import MachineGroup
from scaling.plain import plain
from scaling.records.files import write_text
from scaling.records.paths import RunFolder
from scaling.report import cases, findings, html, markdown, terminal, text
from scaling.report.answer import answer, lead
from scaling.report.conditions import conditions
from scaling.report.documents import steps
from scaling.report.figures import chrome
from scaling.report.key_figures import key_table
from scaling.report.machines import host_blocks, machine_table, rank_blocks
from scaling.report.model import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Advice,
    Block,
    Document,
    Figure,
    Finding,
    Line,
    Lines,
    Section,
    Table,
    lines,
    section,
)
from scaling.report.plots.curves import latency_by_batch, throughput_by_batch
from scaling.report.plots.efficiency import scaling_curve
from scaling.report.plots.steps import history
from scaling.report.strategies import strategy_table
from scaling.settings.plan import HARNESS, SETTLED, Plan
from scaling.units import count, significant

HOW_SURE = "how sure"


def _certainty(quality: results.Quality) -> Iterator[Line]:
    """How well the answer is known, and how many warnings there are."""
    yield from (Line(text=text.sentence(reached)) for reached in quality.reached)
    if quality.warnings:
        many = text.count(len(quality.warnings), "warning")
        yield Line(text=many, link=(many, HOW_SURE))


def _sureness(analysis: results.Analysis, *, crossed: bool) -> Iterator[Section]:
    """`crossed`: whether the figure of the steps marks contended ones."""
    quality, measured = analysis.quality, findings.measured_lines(analysis.quality)
    warnings = map(plain, quality.warnings)
    yield section("quality", lines(*measured, *warnings, look="warnings"), on=TERMINAL)
    yield section(
        HOW_SURE,
        lines(*map(text.sentence, quality.warnings), look="warnings"),
        *_contended(quality, crossed=crossed),
        lines(*map(text.sentence, (*measured, *_checks(analysis)))),
        on=PAGE,
    )
    fabric = findings.fabric_lines(analysis.fabric)
    yield section("how sure, and the fabric", lines(*measured, *fabric), on=MARKDOWN, folded_on=MARKDOWN)


def _checks(analysis: results.Analysis) -> Iterator[str]:
    """World size by world size, what was checked beside the step itself."""
    for point in analysis.points:
        for check in _checks_at(point, analysis.run.device):
            yield f"{text.ranks(point.world_size)}: {check}"


def _checks_at(point: results.Point, device: str) -> Iterator[str]:
    if point.overhead.probe_over_plain:
        yield f"the probe's own cost is {findings.overhead_line(point.overhead)}"
    if point.memory != results.PeakMemory():
        yield f"memory {findings.memory_line(point.memory, device)}"
    if point.loader:
        yield f"batches {findings.loader_line(point.loader)}"
    if cost := findings.cost_line(point.cost):
        yield f"cost {cost}"
    if point.closure:
        yield findings.closure_line(point.closure)


def _contended(quality: results.Quality, *, crossed: bool) -> Iterator[Lines]:
    """Where to see when other programs ran."""
    if crossed and quality.contended_blocks:
        many, where = text.count(quality.contended_blocks, "compute block"), text.headline(STEPS)
        sentence = f"Contended: {many}; the steps near them are crossed in {where}."
        yield Lines(items=(Line(text=sentence, link=(where, STEPS)),), look="note")


STEPS = "steps as they ran"
VERDICTS = "what limits it, and what to try"
TRIALS = "trials that did not finish"


def document(
    analysis: results.Analysis,
    plan: Plan,
    *,
    timelines: Sequence[results.Timeline] = (),
    histories: Sequence[results.StepHistory] = (),
    machines: Sequence[MachineGroup] = (),
    report_path: Path | str | None = None,
) -> Document:
    """All of a run. `report_path`: where its page is, which a terminal names at the end."""
    run = analysis.run
    how = "inference" if analysis.inference else f"{run.mode} scaling"
    return Document(
        title=f"{run.model} on {run.topology}",
        about=f"{run.precision}, {how}, {run.backend} on {run.device}",
        when=text.moment(run.started),
        badge=run.unreal,
        badge_means=_unreal(run),
        answer=answer(analysis),
        lead=lead(analysis, plan, "" if report_path is None else str(report_path)),
        sureness=tuple(_certainty(analysis.quality)),
        sections=tuple(_sections(analysis, plan, timelines, histories, machines)),
        closing=tuple(_closing(analysis, plan, report_path)),
    )


def _unreal(run: results.RunInfo) -> str:
    """What the badge means."""
    simulated = "all times are those of a model of the device and its links." if run.simulated else ""
    synthetic = "compute is sleeps; parameters and traffic are real." if run.synthetic else ""
    return f"{simulated} {synthetic}".strip()


def _sections(
    analysis: results.Analysis,
    plan: Plan,
    timelines: Sequence[results.Timeline],
    histories: Sequence[results.StepHistory],
    machines: Sequence[MachineGroup],
) -> Iterator[Section]:
    """In the order of the page. What another renderer has elsewhere stands here twice, and is built once."""
    condition_lines = _conditions(analysis, plan)
    failed = [findings.trial_line(t) for t in analysis.trials if t.status not in SETTLED]
    trials = lines(*failed, look="warnings")
    verdicts = tuple(_findings(analysis))
    ran = _histories(analysis, histories)

    yield section("", condition_lines, on=TERMINAL)
    yield section("", lines(*failed, *analysis.quality.warnings, look="warnings"), on=MARKDOWN)
    yield section(TRIALS, trials, on=PAGE)
    yield section("key figures", key_table(analysis.points), titled_on=PAGE | TERMINAL)
    yield section("strategies side by side", strategy_table(analysis.strategies))
    yield from _cases(analysis)
    yield section("scaling", Figure(plot=scaling_curve([("", analysis.points)])), on=PAGE)
    yield from steps.efficiency(analysis.points)
    yield from steps.points(analysis, plan)
    yield section("fabric", lines(*findings.fabric_lines(analysis.fabric), look="prose"), on=TERMINAL)
    yield section(VERDICTS, *verdicts, on=PAGE | MARKDOWN)
    yield from steps.page(analysis, plan, timelines)
    yield section("hosts", *host_blocks(analysis.hosts))
    yield section("ranks", *rank_blocks(analysis.ranks))
    yield from map(steps.traced_section, analysis.trace or ())
    yield from _roofline(analysis.roofline)
    yield section(STEPS, *ran, on=PAGE)
    yield section("conditions", condition_lines, on=PAGE | MARKDOWN, folded_on=MARKDOWN)
    yield section("machine and environment", machine_table(machines, plan), on=PAGE)
    yield from _sureness(analysis, crossed=bool(ran))
    yield section(TRIALS, trials, on=TERMINAL)
    yield section("verdicts", *verdicts, on=TERMINAL)


def _conditions(analysis: results.Analysis, plan: Plan) -> Lines:
    """What the numbers are valid for; what is not real stands out."""
    rows = tuple(
        Line(
            name=name,
            text=condition,
            tone="caution" if name.isupper() or "SYNTHETIC" in condition or "SIMULATED" in condition else "",
        )
        for name, condition in conditions(analysis.run, plan)
    )
    return Lines(items=rows, look="conditions")


def _cases(analysis: results.Analysis) -> Iterator[Section]:
    """Tables of cases by world size, and which cases could not be measured."""
    served, trained = analysis.inference, analysis.training
    if served:
        figures = (
            Figure(plot=throughput_by_batch(served), title="Throughput", beside=True),
            Figure(plot=latency_by_batch(served), title="Latency", beside=True),
        )
        yield section("inference", cases.inference_table(served), *figures)
    if trained:
        figure = Figure(plot=throughput_by_batch(trained), title="Throughput")
        yield section("training settings", cases.training_table(trained), figure)
    largest = map(cases.largest_line, analysis.largest_batch)
    yield section("largest batch", lines(*largest), titled_on=TERMINAL | PAGE)
    failures = lines(*cases.failures(analysis), look="warnings")
    yield section("cases that were not measured", failures, on=TERMINAL | PAGE)


def _findings(analysis: results.Analysis) -> Iterator[Block]:
    for verdict in analysis.verdicts:
        yield Finding(
            title=text.headline(findings.verdict_title(verdict)),
            confidence=verdict.confidence,
            evidence=verdict.evidence,
            advice=tuple(
                Advice(overrides=r.overrides, code=r.code, gain=findings.gain(r)) for r in verdict.try_
            ),
        )


def _roofline(line: results.RooflineResult | None) -> Iterator[Section]:
    """A step against what the device's measured ceilings allow, and where its time goes."""
    if line is None:
        return
    blocks = (lines(line.said, look="prose"), *(_step_time(line.where) if line.where else ()))
    yield section(f"roofline, a step of rank {line.rank} without DDP", *blocks, on=TERMINAL)
    yield section("roofline", *blocks, on=PAGE)


def _step_time(where: results.StepTime) -> tuple[Block, ...]:
    """The parts of a step, why they are as they are, and the kernels that lose most."""
    rows = [(p.means.partition(":")[0], text.number(p.ms.value), f"{p.share:.1%}") for p in where.parts]
    rows.append(("not explained", text.number(where.unexplained_ms.value), ""))
    kernels = [
        f"{k.operator} {k.shapes}: {significant(k.ms.value)} ms, {significant(k.least_ms.value)} at its ceiling; "
        f"{count(round(k.calls), 'call')}{f' in layer {k.layer}' * bool(k.layer)}"
        f"{f' and {k.layers - 1} more layers' * (k.layers > 1)}"
        for k in where.slowest
    ]
    columns = (("part of the step", ""), ("takes", "ms"), ("share", ""))
    return (
        Table(columns=columns, rows=tuple(rows), label="Parts"),
        lines(*where.notes, *(p.means for p in where.parts if ":" in p.means), look="items"),
        lines("the kernels that lose most against their ceiling:", look="prose"),
        lines(*kernels, look="items"),
    )


def _histories(analysis: results.Analysis, histories: Sequence[results.StepHistory]) -> tuple[Block, ...]:
    """The steps of the largest world size, where disturbances weigh most; empty where there is nothing to draw."""
    if not histories:
        return ()
    largest = max(histories, key=lambda h: h.world_size)
    point = results.at(largest.world_size, analysis.points)
    plot = history(largest, point.step_ms if point else None)
    return (Figure(plot=plot, title=text.ranks(largest.world_size)),) if plot else ()


def _closing(analysis: results.Analysis, plan: Plan, report_path: Path | str | None) -> Iterator[Line]:
    """How to check a remedy, where `scaling verify` can measure one, and where the page is."""
    if report_path is None:
        return
    has_remedy = any(remedy.overrides for verdict in analysis.verdicts for remedy in verdict.try_)
    if has_remedy and plan.source == HARNESS:
        yield Line(name="verify", text=f"scaling verify {Path(report_path).parent}")
    yield Line(name="report", text=str(report_path))


def publish(
    folder: RunFolder,
    analysis: results.Analysis,
    plan: Plan,
    timelines: Sequence[results.Timeline],
    histories: Sequence[results.StepHistory] = (),
    machines: Sequence[MachineGroup] = (),
) -> None:
    """Write report.html, report.md, report.txt and timeline.json; OSError where the folder cannot be written to."""
    report = document(
        analysis,
        plan,
        timelines=timelines,
        histories=histories,
        machines=machines,
        report_path=folder.report_html,
    )
    written = io.StringIO()
    terminal.draw(Console(file=written, width=text.WIDTH, no_color=True), report)
    write_text(folder.timeline, chrome(timelines))
    write_text(folder.report_html, html.draw(report))
    write_text(folder.report_md, markdown.draw(report))
    write_text(folder.report_txt, written.getvalue())
