"""Two runs side by side; and several as one table, with what is best and those of equal work against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scaling.analysis import results
from scaling.plain import plain
from scaling.report import cases, side_by_side, text
from scaling.report.conditions import conditions
from scaling.report.key_figures import compared_table
from scaling.report.model import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Block,
    Column,
    Document,
    Figure,
    Line,
    Lines,
    Section,
    Table,
    Tone,
    heads,
    lines,
    section,
    tabulated,
)
from scaling.report.plots.efficiency import differences, scaling_curve
from scaling.report.plots.steps import parts
from scaling.report.strategies import listed, slower_lines

CAUSES_DRAWN = 6
CAUSES_LISTED = 4
CAUSES_IN_A_CELL = 2
"""Causes of a difference for each world size: in a figure, in a terminal, and in a cell of Markdown's table."""
RATIO_NAME = "throughput, other over base"
RATIO_NOTE = "other run over base: above 1 the other is faster; ±: half of the 95 % interval"
VALUE_WIDTH = 18
NAME_WIDTH = 9
"""As in the conditions of a run, above which a comparison often stands."""


def document(
    comparison: results.Comparison,
    base: results.Analysis | None = None,
    other: results.Analysis | None = None,
    sweep: results.Sweep | None = None,
) -> Document:
    """What differs, by how much and why. The figures of a page need both analyses; `sweep`: both runs as a table."""
    names = side_by_side.run_names(comparison)
    slow = [text.sentence(line) for line in _slower(sweep)] if sweep else []
    whole = (section(TITLE, table(sweep)),) if sweep else ()
    return Document(
        title=f"{names[1]} against {names[0]}",
        answer=" ".join((side_by_side.answer(comparison), *slow)),
        not_valid=not comparison.comparable,
        sections=(*_sections(comparison, names, base, other), *whole),
    )


def _sections(
    comparison: results.Comparison,
    names: tuple[str, str],
    base: results.Analysis | None,
    other: results.Analysis | None,
) -> Iterator[Section]:
    both = tuple(map(_run, ("base", "other"), names, (comparison.base, comparison.other)))
    yield section("", Lines(items=both, look="conditions", name_width=NAME_WIDTH), on=TERMINAL)
    reasons = () if comparison.comparable else comparison.reasons
    yield section("not comparable", lines(*reasons), on=TERMINAL | PAGE, alarm=True)
    yield section("contended", lines(*comparison.contended, look="warnings"), titled_on=TERMINAL | PAGE)
    nodes = side_by_side.allocation_lines(comparison, names)
    yield section("allocations", lines(*nodes), on=TERMINAL | PAGE)
    yield section("cases", cases.comparison_table(comparison), titled_on=TERMINAL | PAGE)
    like = comparison if comparison.comparable else replace(comparison, points=())
    yield section(RATIO_NAME, Lines(items=tuple(_ratio_lines(like)), look="facts"), on=TERMINAL)
    yield section("", tabulated(like.points, SHORT), on=MARKDOWN)
    ratios = tabulated(like.points, RATIOS, label="Throughput", note=RATIO_NOTE)
    yield section("throughput", ratios, on=PAGE)
    if base is not None and other is not None:
        series = [(f"base: {names[0]}", base.points), (f"other: {names[1]}", other.points)]
        yield section("scaling", Figure(plot=scaling_curve(series)), on=PAGE)
    yield section("what makes the difference", *_differences(like), on=PAGE)
    yield section("compute and fabric", lines(*_at_each(like, side_by_side.split_line)), on=PAGE)
    costs = _at_each(like, lambda p: "; ".join(side_by_side.cost_lines(p.cost)))
    yield section("cost", lines(*costs), on=PAGE)
    for group, differ in (("settings", "differ"), ("environment", "differs")):
        differing = (side_by_side.setting_line(s) for s in comparison.settings if s.of == group)
        yield section(f"{group} that {differ}, base and other", lines(*differing), on=TERMINAL)
    yield section("roofline", lines(*comparison.roofline, look="prose"), on=TERMINAL | PAGE)
    if base is not None and other is not None:
        yield section("parts of a step", Figure(plot=parts(_paired_parts(base, other))), on=PAGE)
    yield section("conditions", _both_conditions(comparison), on=PAGE)
    yield section("what else differs", _settings(comparison), on=PAGE)


def _run(role: str, name: str, run: results.RunInfo) -> Line:
    unreal = f", {run.unreal}" if run.unreal else ""
    return Line(name=role, text=f"{name} ({run.id}{unreal})", tone="caution" if unreal else "")


def _ratio_lines(comparison: results.Comparison) -> Iterator[Line]:
    """The ratio of each world size, and below it what makes the difference."""
    for point in comparison.points:
        ratio = text.quantity(point.ratio)
        note = text.undistinguished(point.ratio, distinguishable=point.distinguishable or comparison.one_run)
        yield Line(name=text.ranks(point.world_size), text=f"{ratio:<{VALUE_WIDTH}}  {note}".rstrip())
        if point.control is not None:
            control = f"{text.quantity(point.control)}  (1 but for the machine's drift)"
            yield Line(name="a rank alone", text=control, level=1)
        for cause, value in side_by_side.largest_causes(point.causes, CAUSES_LISTED):
            change = text.signed(text.quantity(value, "ms"))
            tone: Tone = "good" if value.value < 0 else "bad"
            yield Line(name=text.cause_name(cause), text=f"{change} a step", level=1, tone=tone)
        if split := side_by_side.split_line(point):
            yield Line(name="split", text=split, level=1)
        for cost in side_by_side.cost_lines(point.cost):
            yield Line(name="cost", text=cost, level=1)
    for n in comparison.only_base:
        yield Line(name=text.ranks(n), text="the base alone measured all of it")


RATIOS: tuple[Column[results.PointComparison], ...] = (
    ("ranks", "", lambda p: str(p.world_size)),
    ("other / base", "throughput", lambda p: text.quantity(p.ratio)),
    ("a rank alone", "1 but for drift", lambda p: text.quantity(p.control)),
    ("", "", lambda p: _unclear(p) if p.ratio else "not measured in both"),
)


def _unclear(point: results.PointComparison) -> str:
    return text.undistinguished(point.ratio, distinguishable=point.distinguishable)


def _largest(point: results.PointComparison) -> str:
    return ", ".join(
        f"{text.cause_name(cause)} {text.signed(text.quantity(value))}"
        for cause, value in side_by_side.largest_causes(point.causes, CAUSES_IN_A_CELL)
    )


SHORT: tuple[Column[results.PointComparison], ...] = (
    ("ranks", "", lambda p: str(p.world_size)),
    ("other / base", "", lambda p: text.quantity(p.ratio)),
    ("a rank alone", "", lambda p: text.quantity(p.control)),
    ("", "", _unclear),
    ("most of it", "ms a step", _largest),
)


def _differences(comparison: results.Comparison) -> Iterator[Block]:
    for p in comparison.points:
        plot = differences(side_by_side.largest_causes(p.causes, CAUSES_DRAWN), p.world_size)
        yield Figure(plot=plot, title=text.ranks(p.world_size), beside=True)


def _at_each(comparison: results.Comparison, line: Callable[[results.PointComparison], str]) -> Iterator[str]:
    """A line for each world size where there is one."""
    for point in comparison.points:
        if detail := line(point):
            yield f"{text.ranks(point.world_size)}: {detail}"


def _paired_parts(base: results.Analysis, other: results.Analysis) -> list[tuple[str, results.StepParts]]:
    """The parts of both runs at each world size that both measured."""
    others = {p.world_size: p for p in other.points}
    return [
        (f"{text.ranks(p.world_size)}, {name}", point.parts_ms)
        for p in base.points
        if p.world_size in others
        for name, point in (("base", p), ("other", others[p.world_size]))
    ]


def _both_conditions(comparison: results.Comparison) -> Table:
    base, other = conditions(comparison.base), conditions(comparison.other)
    rows = tuple(
        (name, a, b, "" if a == b else "differs") for (name, a), (_, b) in zip(base, other, strict=True)
    )
    return _side_by_side(rows, "Conditions")


def _settings(comparison: results.Comparison) -> Table:
    rows = tuple((s.key, s.base or text.NONE, s.other or text.NONE, s.of) for s in comparison.settings)
    return _side_by_side(rows, "What else differs")


def _side_by_side(rows: tuple[tuple[str, ...], ...], label: str) -> Table:
    columns = (("", ""), ("base", ""), ("other", ""), ("", ""))
    return Table(columns=columns, rows=rows, label=label, words=True)


def several_document(
    sweep: results.Sweep, comparisons: Sequence[results.Comparison], runs: Sequence[results.Analysis]
) -> Document:
    """`comparisons`: of runs in the sweep with each other, by their ids; `runs`: the sweep's, in its order."""
    names = {run.run.id: plain(name) for name, run in zip(sweep.names, runs, strict=True)}
    series = [(plain(name), run.points) for name, run in zip(sweep.names, runs, strict=True)]
    largest = max((p.world_size for _, points in series for p in points), default=0)
    at_largest = [(name, p.parts_ms) for name, points in series for p in points if p.world_size == largest]
    return Document(
        title=text.count(len(runs), "run"),
        answer=" ".join([answer(sweep), *_on_nodes(comparisons)]),
        sections=(
            section("not real", lines(*_unreal(sweep, runs), look="warnings")),
            section("not comparable", lines(*_reasons(comparisons, names), look="warnings")),
            section("contended", lines(*sweep.contended, look="warnings")),
            section("allocations", lines(*_allocations(comparisons))),
            section(TITLE, table(sweep)),
            section("cases", *_cases(comparisons, names), on=PAGE),
            section("throughput of equal work", _ratios(comparisons, names), on=PAGE | MARKDOWN),
            section("scaling", Figure(plot=scaling_curve(series)), on=PAGE),
            section("parts of a step", Figure(plot=parts(at_largest), title=text.ranks(largest)), on=PAGE),
            section("key figures", compared_table(series), on=PAGE),
        ),
    )


def _unreal(sweep: results.Sweep, runs: Sequence[results.Analysis]) -> Iterator[str]:
    """The runs whose times or data are those of a model, as their own reports say."""
    for name, run in zip(sweep.names, runs, strict=True):
        if run.run.unreal:
            yield f"{plain(name)}: {run.run.unreal}"


def _on_nodes(comparisons: Sequence[results.Comparison]) -> Iterator[str]:
    """What the table of all runs cannot say: ratios of several allocations, or that there is one of each."""
    decided = [pair for pair in comparisons if any(point.allocations for point in pair.points)]
    yield from map(side_by_side.answer, decided)
    others = [pair for pair in comparisons if pair.allocations and pair not in decided]
    for pair in others[:1]:
        yield side_by_side.allocations_answer(pair, side_by_side.run_names(pair))


def _allocations(comparisons: Sequence[results.Comparison]) -> Iterator[str]:
    """Lines of all comparisons; those of a base that they share are given once."""
    yield from dict.fromkeys(
        line
        for pair in comparisons
        for line in side_by_side.allocation_lines(pair, side_by_side.run_names(pair))
    )


def _reasons(comparisons: Sequence[results.Comparison], names: dict[str, str]) -> Iterator[str]:
    for pair in comparisons:
        if not pair.comparable:
            yield f"{names[pair.other.id]} with {names[pair.base.id]}: {'; '.join(map(plain, pair.reasons))}"


def _cases(comparisons: Sequence[results.Comparison], names: dict[str, str]) -> Iterator[Block]:
    """A table of cases for each run that can be compared."""
    for pair in comparisons:
        if pair.comparable and pair.cases:
            title = f"{names[pair.other.id]} against {names[pair.base.id]}"
            yield replace(cases.comparison_table(pair), title=title, label=title)


def _ratios(comparisons: Sequence[results.Comparison], names: dict[str, str]) -> Table:
    """A row for each run that did the same work as another, below the run that it is set against."""
    alike = [pair for pair in comparisons if pair.comparable]
    sizes = sorted({p.world_size for pair in alike for p in pair.points})
    rows = []
    for base in dict.fromkeys(pair.base.id for pair in alike) if sizes else ():
        rows.append((f"{names[base]} (base)", *("1" for _ in sizes)))
        for pair in alike:
            if pair.base.id == base:
                points = {p.world_size: p for p in pair.points}
                rows.append((names[pair.other.id], *(_ratio(points.get(n)) for n in sizes)))
    columns = (("run", ""), *((text.ranks(n), "other / base") for n in sizes))
    return Table(columns=columns, rows=tuple(rows), label="Throughput", note=RATIO_NOTE)


def _ratio(point: results.PointComparison | None) -> str:
    if point is None:
        return text.NONE
    unclear = _unclear(point)
    return f"{text.quantity(point.ratio)} ({unclear})" if unclear else text.quantity(point.ratio)


TITLE = "all runs"
NOTE = (
    "efficiency: 100 % would be as many times one rank's samples a second as there are ranks; "
    "cause: the largest one that is shown, and its share of the step; ±: half of the 95 % interval, within a run"
)


APART = (
    "samples of different models or tasks, and simulated ones beside measured ones, are not compared, so each kind has "
    "a best row of its own"
)


def table(sweep: results.Sweep) -> Table:
    """A row for each run, world size and case, under the settings that differ."""
    shown = {
        "batch": not {"batch_per_rank", "batch"} & set(sweep.keys) and _batches_differ(sweep),
        "status": any(row.status != "done" for row in sweep.rows),
    }
    numbers = tabulated(sweep.rows, SWEPT, shown)
    settings = [[plain(row.settings[key]) for key in sweep.keys] for row in sweep.rows]
    return Table(
        columns=(*heads(*map(plain, sweep.keys)), *numbers.columns),
        rows=tuple((*chosen, *row) for chosen, row in zip(settings, numbers.rows, strict=True)),
        label="All runs",
        note=NOTE,
    )


def answer(sweep: results.Sweep) -> str:
    """What is best, and which ranks are slower than one of them alone."""
    sentences = [*(_best(sweep, best) for best in sweep.best), *_slower(sweep)]
    if len(sweep.best) > 1:
        sentences.insert(0, APART)
    if not sentences:
        sentences = ["nothing can be said of which is best: no two rows have samples of the same kind"]
    if sweep.contended:
        sentences.append("a run was contended, so this is a hint and not a finding")
    return " ".join(map(text.sentence, sentences))


def _batches_differ(sweep: results.Sweep) -> bool:
    return len({row.batch for row in sweep.rows}) > 1


def _cause(row: results.SweepRow) -> str:
    if row.cause is None or row.world_size == 1:
        return text.NONE
    hint = " (a hint)" if row.confidence == "low" else ""
    return f"{text.cause_name(row.cause)} {text.value_of(row.share, 100)} %{hint}"


def _best(sweep: results.Sweep, best: results.SweepBest) -> str:
    row = sweep.rows[best.row]
    claim = f"the most samples a second, {text.quantity(row.samples_per_s)}, come with {_name(row)}"
    if row.samples_per_s is not None and row.samples_per_s.interval is None:
        return f"{claim}, from too few rounds for an interval"
    if row.efficiency is not None and row.world_size > 1:
        claim += f" (efficiency {text.percent(row.efficiency)})"
    if best.rivals:
        claim += f"; not told from {listed([_name(sweep.rows[k]) for k in best.rivals])}"
    if _batches_differ(sweep):
        claim += ". A larger batch takes fewer optimizer steps for the same samples"
    return claim


def _slower(sweep: results.Sweep) -> Iterator[str]:
    """`2 ranks are slower than 1 with ...`, where some are."""
    return slower_lines([(row.world_size, plain(row.name), row.speedup) for row in sweep.rows])


def _name(row: results.SweepRow) -> str:
    size = text.ranks(row.world_size)
    return f"{plain(row.name)} at {size}" if row.name else size


SWEPT: tuple[Column[results.SweepRow], ...] = (
    ("ranks", "", lambda row: str(row.world_size)),
    ("batch", "a rank", lambda row: str(row.batch or text.NONE)),
    ("samples", "1/s", lambda row: text.cell(row.samples_per_s)),
    ("efficiency", "%", lambda row: text.cell(row.efficiency, 100)),
    ("cause", "of the step", _cause),
    ("status", "", lambda row: text.status_name(row.status)),
)
