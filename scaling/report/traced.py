"""What existing traces show, as tables and sentences for every renderer."""

from __future__ import annotations

from scaling.analysis.traced import Traced
from scaling.report.text import cell, count, number, plain, quantity, ranks, value_of
from scaling.units import format_bytes

Table = tuple[tuple[tuple[str, str], ...], tuple[tuple[str, ...], ...]]

COLLECTIVES_SHOWN = 12
"""Rows of collectives, those that take longest first."""
RANKS_SHOWN = 64
"""Rows of ranks."""


def rank_table(traced: Traced) -> Table:
    """A mean step of each rank, part by part."""
    columns = (
        ("rank", ""),
        ("step", "ms"),
        ("compute", "ms"),
        ("exposed", "ms"),
        ("of it skew", "ms"),
        ("hidden", "ms"),
        ("copies", "ms"),
        ("input", "ms"),
        ("host", "ms"),
        ("launch", "ms"),
        ("idle", "ms"),
    )
    rows = tuple(
        (
            str(r.rank),
            cell(r.step_ms),
            *(
                value_of(v)
                for v in (
                    r.compute_ms,
                    r.exposed_ms,
                    r.exposed_skew_ms,
                    r.hidden_ms,
                    r.copies_ms,
                    r.input_ms,
                    r.host_ms,
                    r.launch_ms,
                    r.idle_ms,
                )
            ),
        )
        for r in traced.ranks[:RANKS_SHOWN]
    )
    return columns, rows


def collective_table(traced: Traced) -> Table:
    """Each collective and size: its event, the transfer in it, the wait, the bandwidth, and who came last."""
    columns = (
        ("collective", ""),
        ("ranks", ""),
        ("size", ""),
        ("n", ""),
        ("time", "us"),
        ("transfer", "us"),
        ("skew", "us"),
        ("algbw", "Gbit/s"),
        ("busbw", "Gbit/s"),
        ("last", "rank"),
    )
    rows = tuple(
        (
            plain(c.collective),
            str(c.group_size),
            "-" if c.bytes is None else format_bytes(c.bytes),
            str(c.count),
            value_of(c.time_us),
            value_of(c.transfer_us),
            value_of(c.skew_us),
            value_of(c.algbw_gbit_s),
            value_of(c.busbw_gbit_s),
            f"{c.late_rank} ({c.late_share:.0%})",
        )
        for c in traced.collectives[:COLLECTIVES_SHOWN]
    )
    return columns, rows


def lines(traced: Traced) -> tuple[str, ...]:
    """What the tables do not hold."""
    found = []
    if len(traced.collectives) > COLLECTIVES_SHOWN:
        found.append(
            f"{len(traced.collectives) - COLLECTIVES_SHOWN} more kinds of collectives are in analysis.json"
        )
    if len(traced.ranks) > RANKS_SHOWN:
        found.append(f"{len(traced.ranks) - RANKS_SHOWN} more ranks are in analysis.json")
    if traced.dilation is not None:
        d = traced.dilation
        found.append(
            f"{count(d.kernels, 'kernel')} take {number(d.ratio.value)} times as long beside communication "
            f"as alone, {quantity(d.cost_ms, 'ms')} a step"
        )
    if traced.end_spread_us is not None:
        found.append(
            f"a collective ends within {quantity(traced.end_spread_us, 'us')} on all its ranks (median): "
            "so well do the clocks agree that skew and transfer are told apart by"
        )
    return tuple(found)


def hta_tables(traced: Traced) -> tuple[Table, Table] | None:
    """HolisticTraceAnalysis' temporal breakdown with its overlap, and its time by type of kernel."""
    if traced.hta is None:
        return None
    breakdown = (
        ("rank", ""),
        ("idle", "us"),
        ("compute", "us"),
        ("non-compute", "us"),
        ("kernel", "us"),
        ("idle", "%"),
        ("compute", "%"),
        ("overlap", "%"),
    )
    rows = tuple(
        (
            str(r.rank),
            *(f"{v:.3f}" for v in (r.idle_us, r.compute_us, r.non_compute_us, r.kernel_us)),
            *(
                "-" if v is None else f"{v:.2f}"
                for v in (r.idle_percent, r.compute_percent, r.overlap_percent)
            ),
        )
        for r in traced.hta.ranks
    )
    types = tuple(
        (t.kernel_type, f"{t.sum_us:.3f}", "-" if t.percent is None else f"{t.percent:.1f}")
        for t in traced.hta.kernel_types
    )
    return (breakdown, rows), ((("kernel type", ""), ("sum", "us"), ("share", "%")), types)


def title(traced: Traced) -> str:
    """Of which ranks and events the tables are."""
    what = "device events" if traced.device == "gpu" else "operators on the host"
    here = (
        f"{len(traced.ranks)} of {ranks(traced.world_size)}"
        if traced.missing_ranks
        else ranks(traced.world_size)
    )
    return f"{here} from traces ({what})"
