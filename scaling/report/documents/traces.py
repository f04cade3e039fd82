"""What profiler traces show beyond the results that every run has."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results.traces import Traced
from scaling.report.model import PAGE, TERMINAL, Section, Table, heads, lines
from scaling.report.text import NONE, cell, count, number, quantity, ranks, value_of
from scaling.units import format_bytes

COLLECTIVES_SHOWN = 12
"""Rows of collectives, those that take longest first."""
RANKS_SHOWN = 64
"""Rows of ranks."""


def section(traced: Traced) -> Section:
    """The tables of one job's traces."""
    prose = lines(*_lines(traced))
    kinds = (_kind_table(traced),) if len(traced.kinds) > 1 else ()
    on_page = (_rank_table(traced), *kinds, _collective_table(traced), prose)
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


def _kind_table(traced: Traced) -> Table:
    """Communication by kind and process group, a step."""
    columns = heads(
        "collective", "group", "ranks", "calls", "size", ("busy", "ms"), ("exposed", "ms"), ("hidden", "ms")
    )
    rows = tuple(
        (
            k.collective,
            k.group,
            NONE if k.group_size is None else str(k.group_size),
            number(k.calls.value),
            NONE if k.bytes is None else format_bytes(k.bytes),
            *map(value_of, (k.busy_ms, k.exposed_ms, k.hidden_ms)),
        )
        for k in traced.kinds[:COLLECTIVES_SHOWN]
    )
    title = "Communication by kind and process group, per rank and step"
    return Table(columns=columns, rows=rows, title=title, label=title)


def _collective_table(traced: Traced) -> Table:
    """Each collective and size: its event, the transfer in it, the wait, the bandwidth, and who came last."""
    columns = heads(
        "collective",
        "ranks",
        "size",
        "n",
        ("time", "us"),
        ("transfer", "us"),
        ("skew", "us"),
        ("algbw", "Gbit/s"),
        ("busbw", "Gbit/s"),
        ("last", "rank"),
    )
    rows = tuple(
        (
            c.collective,
            str(c.group_size),
            NONE if c.bytes is None else format_bytes(c.bytes),
            str(c.count),
            *map(value_of, (c.time_us, c.transfer_us, c.skew_us, c.algbw_gbit_s, c.busbw_gbit_s)),
            f"{c.late_rank} ({c.late_share:.0%})",
        )
        for c in traced.collectives[:COLLECTIVES_SHOWN]
    )
    title = "Collectives, matched over ranks"
    return Table(columns=columns, rows=rows, title=title, label=title)


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
