"""What profiler traces show beyond the results that every run has."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results.traces import Traced, TracedCollective, TracedKind
from scaling.report.model import PAGE, TERMINAL, Column, Section, Table, lines, tabulated
from scaling.report.text import NONE, cell, count, number, quantity, ranks, value_of
from scaling.units import format_bytes

COLLECTIVES_SHOWN = 12
"""Rows of collectives, those that take longest first."""
RANKS_SHOWN = 64
"""Rows of ranks."""


def section(traced: Traced) -> Section:
    """The tables of one job's traces."""
    prose = lines(*_lines(traced))
    title = "Communication by kind and process group, per rank and step"
    kinds = tabulated(traced.kinds[:COLLECTIVES_SHOWN], KINDS, title=title, label=title)
    title = "Collectives, matched over ranks"
    calls = tabulated(traced.collectives[:COLLECTIVES_SHOWN], COLLECTIVES, title=title, label=title)
    on_page = (_rank_table(traced), *((kinds,) if len(traced.kinds) > 1 else ()), calls, prose)
    return Section(title=_title(traced), blocks=on_page, on=TERMINAL | PAGE)


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


COLLECTIVES: tuple[Column[TracedCollective], ...] = (
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
