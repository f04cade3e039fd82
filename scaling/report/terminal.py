"""The results as text, in the manner of nccl-tests: `#` lines say what holds, the others carry numbers.

Nothing is told by colour alone, so a piped or saved report loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scaling.analysis.results import (
    Analysis,
    Comparison,
    Fits,
    Memory,
    Point,
    PointComparison,
    Prediction,
    Verdict,
)
from scaling.analysis.traced import Traced
from scaling.plan import Plan
from scaling.report import cases, findings, predicted, text, versus
from scaling.report import traced as shown
from scaling.report.bars import NAME, NUMBER, part_lines, waterfall_lines
from scaling.report.conditions import conditions
from scaling.report.fabric import fabric_lines
from scaling.report.hosts import NOTE, SHOWN, host_lines, host_table
from scaling.report.lines import head as _head
from scaling.report.lines import printed as _print
from scaling.report.lines import prose as _prose
from scaling.report.lines import table as _table

CAUSES_SHOWN = 4
"""Causes of a difference that a comparison lists for each world size."""


def print_analysis(
    console: Console, analysis: Analysis, plan: Plan, *, report_path: Path | str | None = None
) -> None:
    """Print the whole analysis: conditions, figures, where each step goes, verdicts, the answer."""
    _print(console, _analysis(analysis, plan, report_path))


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print two runs side by side: what differs, by how much, and why."""
    _print(console, _comparison(comparison))


def print_prediction(console: Console, prediction: Prediction) -> None:
    """Print a run under other settings, and how well the model tells what the run itself measured."""
    _print(console, _prediction(prediction))


def _analysis(analysis: Analysis, plan: Plan, report_path: Path | str | None) -> Iterator[Text]:
    yield from _conditions(conditions(analysis.run, plan))
    if analysis.points:
        yield from _key_figures(analysis.points, analysis.fits)
    yield from _cases(analysis)
    source = plan.spec.topology.link.source
    for point in analysis.points:
        if point.world_size > 1:
            yield from _point(point, source, analysis.run.device)
    links = fabric_lines(analysis.fabric)
    if links:
        yield _head("fabric")
        for line in links:
            yield from _prose(line, hang="    ")
    if analysis.hosts:
        yield _head("hosts")
        yield from _table(*host_table(analysis.hosts, SHOWN))
        yield from _prose(NOTE, lead="# ", hang="# ", style="dim")
        for line in host_lines(analysis.hosts, SHOWN):
            yield from _prose(text.sentence(line), hang="    ")
    if analysis.roofline is not None:
        yield _head(f"roofline, a step of rank {analysis.roofline.rank} without DDP")
        yield from _prose(analysis.roofline.said, hang="    ")
    for traced in analysis.trace or ():
        yield from _traced(traced)
    yield from _section("quality", findings.quality_lines(analysis.quality))
    failed = [findings.trial_line(t) for t in analysis.trials if t.status != "done"]
    yield from _section("trials that did not finish", failed)
    if analysis.verdicts:
        yield _head("verdicts")
        for verdict in analysis.verdicts:
            yield from _verdict(verdict)
    yield _head("answer")
    yield from _prose(findings.answer(analysis), style="bold")
    if report_path is not None:
        # A path stays on one line, so that it can be opened with a click.
        if plan.spec.launcher != "trace" and not plan.spec.own_loop and _has_remedy(analysis):
            yield Text(f"# verify  scaling verify {text.plain(str(Path(report_path).parent))}", style="dim")
        yield Text(f"# report  {text.plain(str(report_path))}", style="dim")


def _has_remedy(analysis: Analysis) -> bool:
    """Whether some verdict has settings to try, which `scaling verify` measures beside the present ones."""
    return any(remedy.overrides for verdict in analysis.verdicts for remedy in verdict.try_)


def _conditions(pairs: Iterable[tuple[str, str]]) -> Iterator[Text]:
    for name, value in pairs:
        style = "bold yellow" if name.isupper() or "SYNTHETIC" in value else "dim"
        yield from _prose(value, lead=f"# {name:<9}  ", hang=f"# {'':<9}  ", style=style)


def _key_figures(points: tuple[Point, ...], fits: Fits) -> Iterator[Text]:
    yield _head("key figures")
    yield from _table(*text.key_table(points))
    yield from _prose(text.COLUMNS_NOTE, lead="# ", hang="# ", style="dim")
    for line in findings.fit_lines(fits):
        yield from _prose(text.sentence(line), hang="    ")


def _cases(analysis: Analysis) -> Iterator[Text]:
    """Tables of cases by world size, and what of them was not to be had."""
    if analysis.inference:
        yield _head("inference")
        yield from _table(*cases.inference_table(analysis.inference))
        yield from _prose(cases.INFERENCE_NOTE, lead="# ", hang="# ", style="dim")
    if analysis.training:
        yield _head("training")
        yield from _table(*cases.training_table(analysis.training))
        yield from _prose(cases.TRAINING_NOTE, lead="# ", hang="# ", style="dim")
    yield from _section("largest batch", map(cases.largest_line, analysis.largest_batch))
    yield from _section("cases that were not measured", cases.failures(analysis))


def _point(point: Point, rate_source: str, device: str) -> Iterator[Text]:
    if point.step_ms is None:
        return
    at = f"{text.ranks(point.world_size)} on {text.count(point.hosts, 'host')}"
    yield _head(f"{at}: a step of {text.quantity(point.step_ms, 'ms')}")
    yield from part_lines(point.parts_ms)
    if point.loss is not None:
        yield from waterfall_lines(point.loss, point.efficiency)
    if point.straggler is not None:
        yield from _fact("straggler", findings.straggler_line(point.straggler), style="bold red")
    if point.loader is not None:
        yield from _fact("batches", findings.loader_line(point.loader))
    if point.comm is not None:
        yield from _fact("gradients", findings.comm_line(point.comm, rate_source))
    if point.memory != Memory():
        yield from _fact("memory", findings.memory_line(point.memory, device))
    if line := findings.cost_line(point.cost):
        yield from _fact("cost", line)
    if point.overhead.probe_over_plain is not None:
        yield from _fact("probe's cost", findings.overhead_line(point.overhead))
    if point.closure is not None:
        yield from _fact("closure", findings.closure_line(point.closure))


def _traced(traced: Traced) -> Iterator[Text]:
    yield _head(shown.title(traced))
    yield from _table(*shown.rank_table(traced))
    if traced.collectives:
        yield _head("collectives, matched over ranks")
        yield from _table(*shown.collective_table(traced))
    for line in shown.lines(traced):
        yield from _prose(line, lead="  - ", hang="    ")
    tables = shown.hta_tables(traced)
    if tables is not None:
        yield _head("HolisticTraceAnalysis' quantities, by its definitions")
        for table in tables:
            yield from _table(*table)


def _verdict(verdict: Verdict) -> Iterator[Text]:
    title = (
        f"{text.sentence(findings.verdict_title(verdict))[:-1]} (confidence {text.plain(verdict.confidence)})"
    )
    yield from _prose(title, style="bold")
    for evidence in verdict.evidence:
        yield from _prose(text.plain(evidence), lead="  - ", hang="    ")
    for remedy in verdict.try_:
        what, *code = [text.plain(line) for line in (remedy.overrides, remedy.code) if line]
        gain = findings.gain(remedy)
        yield from _prose(f"{what}{gain}", lead="  try  ", hang="       ", style="green")
        for line in code:
            yield from _prose(line, lead="       in code: ", hang="       ")


def _comparison(comparison: Comparison) -> Iterator[Text]:
    names = versus.run_names(comparison)
    for role, name, run in zip(("base", "other"), names, (comparison.base, comparison.other), strict=True):
        synthetic = ", SYNTHETIC compute" if run.synthetic else ""
        yield from _conditions([(role, f"{name} ({text.plain(run.id)}{synthetic})")])
    if not comparison.comparable:
        yield Text("# NOT COMPARABLE", style="bold red")
        for reason in comparison.reasons:
            yield from _prose(text.plain(reason), lead="  - ", hang="    ")
    if comparison.cases:
        yield _head("cases")
        yield from _table(*cases.comparison_table(comparison))
    if comparison.points:
        yield _head("throughput, other over base")
    for point in comparison.points:
        ratio = text.quantity(point.ratio)
        note = text.undistinguished(point.ratio, distinguishable=point.distinguishable)
        yield Text(f"  {text.ranks(point.world_size):<{NAME + 2}}{ratio:<{NUMBER}}  {note}".rstrip())
        if point.control is not None:
            control = text.quantity(point.control)
            yield Text(f"    {'a rank alone':<{NAME}}{control}  (1 but for the machine's drift)")
        yield from _causes(point)
        for name, line in (
            ("split", versus.split_line(point)),
            *(("cost", line) for line in versus.cost_lines(point.cost)),
        ):
            if line:
                yield from _prose(line, lead=f"    {name:<{NAME}}", hang=" " * (4 + NAME))
    for of in ("settings", "environment"):
        differing = [versus.setting_line(s) for s in comparison.settings if s.of == of]
        yield from _section(f"{of} that differ, base and other", differing)
    if comparison.roofline:
        yield _head("roofline")
        for line in comparison.roofline:
            yield from _prose(text.plain(line), hang="    ")
    yield _head("answer")
    yield from _prose(versus.answer(comparison), style="bold")


def _causes(point: PointComparison) -> Iterator[Text]:
    for cause, value in versus.largest_causes(point.causes, CAUSES_SHOWN):
        style = "green" if value.value < 0 else "red"
        change = text.signed(text.quantity(value, "ms"))
        yield Text.assemble(f"    {text.cause_name(cause):<{NAME}}", (change, style), " a step")


def _prediction(prediction: Prediction) -> Iterator[Text]:
    yield from _conditions(predicted.conditions(prediction))
    yield _head("predicted")
    yield from _table(*predicted.table(prediction.points))
    yield from _prose(
        "±: half of the 95 % interval, the model's own error in it", lead="# ", hang="# ", style="dim"
    )
    last = prediction.points[-1]
    if last.loss is not None and last.world_size > 1:
        yield _head(f"{text.ranks(last.world_size)}: a step of {text.quantity(last.step_ms, 'ms')}")
        yield from waterfall_lines(last.loss, last.efficiency)
    yield _head("back-test: each measured world size, predicted from the others")
    if prediction.backtest:
        yield from _table(*predicted.backtest_table(prediction.backtest))
    yield from _prose(prediction.backtest_missing or "", style="yellow")
    yield from _section("what this leans on", prediction.notes)
    yield _head("answer")
    yield from _prose(predicted.answer(prediction), style="bold")


def _section(title: str, lines: Iterable[str]) -> Iterator[Text]:
    lines = tuple(lines)
    if lines:
        yield _head(title)
    for line in lines:
        yield from _prose(line, lead="  - ", hang="    ", style="yellow")


def _fact(name: str, value: str, style: str = "") -> Iterator[Text]:
    return _prose(value, lead=f"  {name:<{NAME}}", hang=" " * (2 + NAME), style=style)
