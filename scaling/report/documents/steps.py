"""Where the steps of a run go: for a terminal world size by world size, for a page figure by figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Analysis, Collective, Comm, PeakMemory, Point, Timeline
from scaling.analysis.results.traces import Traced, TracedCollective, TracedKind
from scaling.plain import plain
from scaling.report import findings, text
from scaling.report.key_figures import part_bars, waterfall_bars
from scaling.report.model import (
    MARKDOWN,
    PAGE,
    TERMINAL,
    Block,
    Column,
    Figure,
    Line,
    Lines,
    Section,
    Table,
    lines,
    section,
    tabulated,
)
from scaling.report.plots.curves import fabric
from scaling.report.plots.efficiency import waterfall
from scaling.report.plots.steps import parts, timeline
from scaling.report.text import NONE, cell, count, number, quantity, ranks, value_of
from scaling.settings.plan import Plan
from scaling.units import format_bytes

TOLD_APART = 0.02
"""A step with phase stamps, whose parts these are, is named beside the plain one where it differs by more."""

EFFICIENCY = "where the efficiency goes"


def efficiency(points: Sequence[Point]) -> Iterator[Section]:
    """The waterfalls: on a page all of them, the largest world size first; in Markdown the largest as bars."""
    fallen = sorted((p for p in points if p.loss is not None), key=lambda p: p.world_size)
    figures = [
        Figure(plot=waterfall(p), title=text.ranks(p.world_size), beside=p is not fallen[-1]) for p in fallen
    ]
    told = [
        f"{text.ranks(p.world_size)}{', tokens' * (line.name == 'tokens')}: {line.text}"
        for p in points
        for line in _told(p)
    ]
    yield section(EFFICIENCY, *figures[-1:], *figures[:-1], lines(*told), on=PAGE)
    for point in fallen[-1:]:
        if point.loss is not None and point.world_size > 1:
            bars = waterfall_bars(point.loss, point.efficiency)
            title = f"{EFFICIENCY}, {text.ranks(point.world_size)}"
            yield section(title, bars, on=MARKDOWN)


def points(analysis: Analysis, plan: Plan) -> Iterator[Section]:
    """A section for each world size above 1 that was measured."""
    source = plan.spec.topology.link.source
    for point in analysis.points:
        if point.world_size > 1 and point.step_ms is not None:
            at = f"{text.ranks(point.world_size)} on {text.count(point.hosts, 'host')}"
            blocks: list[Block] = [part_bars(point.parts_ms)]
            if point.loss is not None:
                blocks.append(waterfall_bars(point.loss, point.efficiency))
            if point.comm is not None:
                blocks += _by_kind(point.comm, point.world_size)
            blocks.append(Lines(items=tuple(_facts(point, source, analysis)), look="facts"))
            title = f"{at}: a step of {text.quantity(point.step_ms, 'ms')}"
            stamped, apart = point.arms_ms.probe, point.overhead.probe_over_plain
            if stamped and apart and abs(apart.value - 1) > TOLD_APART:
                title += f", {text.quantity(stamped, 'ms')} with phase stamps"
            yield section(title, *blocks, on=TERMINAL)


def _told(point: Point) -> Iterator[Line]:
    """Who is late, and what a loop does on the way."""
    if point.straggler is not None:
        yield Line(name="straggler", text=findings.straggler_line(point.straggler), tone="alarm")
    for phase in point.phases:
        yield Line(name="phase", text=findings.phase_line(phase))
    if point.tokens is not None:
        yield Line(name="tokens", text=findings.tokens_line(point.tokens, point.step_ms))
    for line in findings.beside_lines(point):
        yield Line(name="beside steps", text=f"{line}{findings.BETWEEN}")
    for line in findings.drift_lines(point):
        yield Line(name="drift", text=line)
    if point.goodput is not None:
        yield Line(name="goodput", text=findings.goodput_line(point.goodput))


def _facts(point: Point, rate_source: str, analysis: Analysis) -> Iterator[Line]:
    yield from _told(point)
    if point.loader is not None:
        yield Line(name="batches", text=findings.loader_line(point.loader))
    if point.comm is not None:
        disturbed = _disturbed(analysis, point.world_size)
        sent = findings.comm_line(point.comm, rate_source, disturbed=disturbed)
        yield Line(name="gradients", text=sent)
    if point.memory != PeakMemory():
        yield Line(name="memory", text=findings.memory_line(point.memory, analysis.run.device))
    if analysis.roofline is not None and point.mfu is not None:
        yield Line(name="utilisation", text=findings.use_line(point.mfu, point.hfu, analysis.roofline))
    if cost := findings.cost_line(point.cost):
        yield Line(name="cost", text=cost)
    if point.overhead.probe_over_plain is not None:
        yield Line(name="probe's cost", text=findings.overhead_line(point.overhead))
    if point.closure is not None:
        yield Line(name="closure", text=findings.closure_line(point.closure))


def page(analysis: Analysis, plan: Plan, timelines: Sequence[Timeline]) -> Iterator[Section]:
    """One typical step of each world size, the mean parts, and what a step sends."""
    typical = (
        Figure(plot=timeline(t, disturbed=_disturbed(analysis, t.world_size)), title=text.ranks(t.world_size))
        for t in timelines
    )
    yield section("one typical step", *typical, on=PAGE)
    yield section("parts of a step", *_parts(analysis), on=PAGE)
    yield section("communication", *_communication(analysis, plan), on=PAGE)


def _disturbed(analysis: Analysis, world_size: int) -> bool:
    """Whether stamps of single collectives disturb the step at this world size; known of the largest one."""
    details = analysis.quality.details
    return details is not None and details.disturbs and world_size == analysis.points[-1].world_size


def _parts(analysis: Analysis) -> Iterator[Block]:
    """The mean parts of a step as bars, and folded away as numbers."""
    rows = [(text.ranks(p.world_size), p.parts_ms) for p in analysis.points]
    yield Figure(plot=parts(rows, traced=bool(analysis.trace)))
    named = [(key, name) for key, name in text.PARTS.items() if any(getattr(p, key) for _, p in rows)]
    yield Table(
        columns=(("part", ""), *((name, "ms") for name, _ in rows)),
        rows=tuple((name, *(text.cell(getattr(p, key)) for _, p in rows)) for key, name in named),
        label="Parts of a step",
        folded="The numbers, with their intervals",
    )


def _communication(analysis: Analysis, plan: Plan) -> Iterator[Block]:
    """What a step sends, and where its buckets lie on the link's curve."""
    with_comm = {p.world_size: p.comm for p in analysis.points if p.comm}
    source = plan.spec.topology.link.source
    sentences = [
        f"{text.ranks(n)}: {findings.comm_line(comm, source, disturbed=_disturbed(analysis, n))}"
        for n, comm in with_comm.items()
    ]
    yield lines(*sentences, *map(plain, analysis.fabric.others), *findings.nccl_lines(analysis.fabric.nccl))
    for n, comm in with_comm.items():
        yield from _by_kind(comm, n)
    for level in analysis.fabric.levels:
        comm_there = with_comm.get(level.world_size) or with_comm.get(max(with_comm, default=0))
        sizes = [bucket.bytes for bucket in comm_there.buckets] if comm_there else []
        title = f"{level.name}, {text.ranks(level.world_size)}"
        yield Figure(plot=fabric(level, sizes), title=title, beside=True)


COLLECTIVES: tuple[Column[Collective], ...] = (
    ("collective", "", lambda c: c.kind),
    ("phase", "", lambda c: c.phase),
    ("ranks", "", lambda c: f"{c.ranks} ({c.communicator})"),
    ("calls", "", lambda c: str(c.calls)),
    ("bytes", "", lambda c: format_bytes(c.bytes)),
    ("transfer", "ms", lambda c: text.cell(c.transfer_ms)),
    ("waited for data", "ms", lambda c: text.cell(c.exposed_transfer_ms)),
    ("waited for ranks", "ms", lambda c: text.cell(c.exposed_skew_ms)),
    ("busbw", "Gbit/s", lambda c: text.cell(c.busbw_gbit_s)),
)


def _by_kind(comm: Comm, world_size: int) -> Iterator[Table]:
    """The collectives of a step by kind, phase and communicator, where there is more than one of these."""
    if len(comm.collectives) > 1:
        label = f"Collectives of a step at {text.ranks(world_size)}"
        yield tabulated(comm.collectives, COLLECTIVES, label=label)


COLLECTIVES_SHOWN = 12
"""Rows of collectives, those that take longest first."""
RANKS_SHOWN = 64
"""Rows of ranks."""


def traced_section(traced: Traced) -> Section:
    """The tables of one job's traces."""
    prose = lines(*_lines(traced))
    title = "Communication by kind and process group, per rank and step"
    kinds = tabulated(traced.kinds[:COLLECTIVES_SHOWN], KINDS, title=title, label=title)
    title = "Collectives, matched over ranks"
    calls = tabulated(traced.collectives[:COLLECTIVES_SHOWN], TRACED, title=title, label=title)
    on_page = (_rank_table(traced), *((kinds,) if len(traced.kinds) > 1 else ()), calls, prose)
    return section(_title(traced), *on_page, on=TERMINAL | PAGE)


def _title(traced: Traced) -> str:
    """Which ranks and events the tables are made of."""
    what = "device events" if traced.device == "gpu" else "operators on the host"
    whole = ranks(traced.world_size)
    here = f"{len(traced.ranks)} of {whole}" if traced.missing_ranks else whole
    return f"{here} from traces ({what})"


def _rank_table(traced: Traced) -> Table:
    """The mean step of each rank, part by part."""
    parts = ("compute", "exposed", "exposed_skew", "hidden", "copies", "input", "host", "launch", "idle")
    names = ("step", *("of it skew" if part == "exposed_skew" else part for part in parts))
    columns = (("rank", ""), *((name, "ms") for name in names))
    rows = tuple(
        (str(r.rank), cell(r.step_ms), *(value_of(getattr(r, f"{part}_ms")) for part in parts))
        for r in traced.ranks[:RANKS_SHOWN]
    )
    return Table(columns=columns, rows=rows, label="Ranks")


KINDS: tuple[Column[TracedKind], ...] = (
    ("collective", "", lambda k: k.collective),
    ("group", "", lambda k: k.group),
    ("ranks", "", lambda k: NONE if k.group_size is None else str(k.group_size)),
    ("calls", "", lambda k: number(k.calls.value)),
    ("size", "", lambda k: NONE if k.bytes is None else format_bytes(k.bytes)),
    ("busy", "ms", lambda k: value_of(k.busy_ms)),
    ("exposed", "ms", lambda k: value_of(k.exposed_ms)),
    ("hidden", "ms", lambda k: value_of(k.hidden_ms)),
)


TRACED: tuple[Column[TracedCollective], ...] = (
    ("collective", "", lambda c: c.collective),
    ("ranks", "", lambda c: str(c.group_size)),
    ("size", "", lambda c: NONE if c.bytes is None else format_bytes(c.bytes)),
    ("n", "", lambda c: str(c.count)),
    ("time", "us", lambda c: value_of(c.time_us)),
    ("transfer", "us", lambda c: value_of(c.transfer_us)),
    ("skew", "us", lambda c: value_of(c.skew_us)),
    ("algbw", "Gbit/s", lambda c: value_of(c.algbw_gbit_s)),
    ("busbw", "Gbit/s", lambda c: value_of(c.busbw_gbit_s)),
    ("last", "rank", lambda c: f"{c.late_rank} ({c.late_share:.0%})"),
)


def _lines(traced: Traced) -> Iterator[str]:
    """What the tables do not hold."""
    if len(traced.collectives) > COLLECTIVES_SHOWN:
        yield f"{len(traced.collectives) - COLLECTIVES_SHOWN} more kinds of collectives are in analysis.json"
    if len(traced.ranks) > RANKS_SHOWN:
        yield f"{len(traced.ranks) - RANKS_SHOWN} more ranks are in analysis.json"
    if traced.dilation is not None:
        dilation = traced.dilation
        yield (
            f"{count(dilation.kernels, 'kernel')} take {number(dilation.ratio.value)} times as long during "
            f"communication as alone, {quantity(dilation.cost_ms, 'ms')} a step"
        )
    if traced.end_spread_us is not None:
        yield (
            f"a collective ends within {quantity(traced.end_spread_us, 'us')} on all its ranks (median): the "
            "clocks agree so closely, and skew is separated from transfer no better than that"
        )
