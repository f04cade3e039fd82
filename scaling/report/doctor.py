"""What the doctor found, as text: problems with their remedies first, then what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from scaling.analysis.results import Measured, RooflineResult
from scaling.doctor.results import ERROR, Checkup, Divergence, PairBandwidth
from scaling.report import text
from scaling.report.lines import head, printed, prose, table
from scaling.units import format_bytes, format_duration

PAIRS_SHOWN = 12


def print_checkup(console: Console, found: Checkup, *, folder: Path | str) -> None:
    """Print all of it."""
    printed(console, _checkup(found, folder))


def _checkup(found: Checkup, folder: Path | str) -> Iterator[Text]:
    run = found.run
    ranks = f"{text.ranks(len(found.ranks))}, {run.backend} on {run.device}"
    yield from prose(
        f"{run.model} ({run.precision}) on {run.topology}: {ranks}", lead="# checked  ", hang="#          "
    )
    yield from prose(format_duration(run.duration_s), lead="# took     ")
    yield from _ceilings(found.roofline)
    yield from _step(found.roofline)
    if found.parity:
        yield from _parity(found.parity.table, found.parity.steps)
    yield from _pairs(found.pairs)
    yield from _memory(found)
    others = [
        d for d in found.differences if not any(p.what.startswith(f"{d.key} differs") for p in found.problems)
    ]
    if others:
        yield head("differs between ranks")
        for item in others:
            values = "; ".join(f"{v.value} on {_ranks(v.ranks)}" for v in item.values)
            yield from prose(text.plain(f"{item.key}: {values}"), hang="    ")
    yield head(f"problems: {_count(found)}")
    for problem in found.problems:
        where = f"rank {problem.rank}: " if problem.rank is not None else ""
        style = "bold red" if problem.severity == ERROR else "yellow"
        lead = f"  {problem.severity:<8} "
        yield from prose(text.plain(f"{where}{problem.what}"), lead=lead, hang=" " * len(lead), style=style)
        yield from prose(text.plain(problem.remedy), lead="  remedy   ", hang=" " * 11, style="green")
    yield Text(f"# kept     {text.plain(str(folder))}", style="dim")


def _count(found: Checkup) -> str:
    errors = sum(p.severity == ERROR for p in found.problems)
    if not found.problems:
        return "none"
    return f"{text.count(errors, 'error')}, {text.count(len(found.problems) - errors, 'warning')}"


def _ceilings(found: RooflineResult | None) -> Iterator[Text]:
    if found is None:
        return
    yield head(f"ceilings of rank {found.rank} ({text.plain(found.device)}), the best of some repetitions")
    rows = [
        (c.name.replace("_", " "), _size(c.name, c.size), f"{c.best.value / 1e9:.4g}", f"G{c.unit}")
        if c.unit != "1/s"
        else (c.name.replace("_", " "), "", f"{c.best.value / 1e6:.3g}", "M/s")
        for c in found.ceilings
    ]
    yield from table((("work", ""), ("size", ""), ("best", ""), ("unit", "")), rows)


def _size(name: str, size: int) -> str:
    return str(size) if name.startswith("matmul") else format_bytes(size)


def _step(found: RooflineResult | None) -> Iterator[Text]:
    if found is None:
        return
    at = f"batch {found.batch}, {found.precision}"
    yield head(f"a step without DDP ({at}): {text.quantity(found.step_ms, 'ms')}, bound: {found.bound}")
    mfu = f"; MFU {text.percent(found.mfu)} of the measured product" if found.mfu else ""
    yield from prose(
        f"{found.flops / 1e9:.4g} GFLOP, {format_bytes(found.bytes)} read and written, {found.operators} operators; "
        f"{found.achieved_flop_s.value / 1e9:.4g} GFLOP/s{mfu}"
    )
    rows = [(name.replace("_", " "), _ms(value)) for name, value in found.least_ms.items() if value.value]
    yield from table((("bound", ""), ("at least", "ms")), rows)
    operators = [
        (
            f"{o.name} {o.layer}".strip()[:34],
            str(o.count),
            f"{o.flops / 1e9:.3g}",
            format_bytes(o.bytes),
            _ms(o.least_ms),
            o.bound,
        )
        for o in found.top
    ]
    columns = (
        ("operator", ""),
        ("calls", ""),
        ("work", "GFLOP"),
        ("traffic", ""),
        ("at least", "ms"),
        ("bound", ""),
    )
    yield from table(columns, [tuple(map(text.plain, row)) for row in operators])


def _ms(value: Measured) -> str:
    return f"{value.value:.3g}"


def _parity(rows: Sequence[Divergence], steps: int) -> Iterator[Text]:
    yield head(f"parity: {steps} seeded steps against float64")
    cells = [
        (
            row.precision,
            _ranks(row.ranks),
            _error(row.gradient_error),
            _error(row.weight_error),
            _error(row.loss_error),
            "yes" if row.repeatable else "NO",
            f"{row.not_finite}/{row.flushed}",
            "-" if row.step_ms is None else _ms(row.step_ms),
            "-" if row.speedup is None else f"{row.speedup.value:.2f}",
        )
        for row in rows
    ]
    columns = (
        ("format", ""),
        ("ranks", ""),
        ("gradient", "step 1"),
        ("weights", "last"),
        ("loss", "last"),
        ("same", "bits"),
        ("inf/0", ""),
        ("step", "ms"),
        ("speed", "/ fp32"),
    )
    yield from table(columns, cells)
    for row in rows:
        if row.parts_at:
            who = _ranks(row.ranks)
            yield from prose(
                text.plain(f"{row.precision}: {who} on {row.device}: first differs at {row.parts_at}"),
                hang="    ",
            )
    yield from prose(
        "gradient, weights, loss: |x - float64| / |float64|; inf: elements that are not finite, 0: flushed to zero",
        lead="# ",
        hang="# ",
        style="dim",
    )


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _ranks(ranks: Sequence[int]) -> str:
    if not ranks:
        return "file"
    whole = list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return (
        str(ranks[0])
        if len(ranks) == 1
        else f"{ranks[0]}-{ranks[-1]}"
        if whole
        else ",".join(map(str, ranks))
    )


def _pairs(pairs: Sequence[PairBandwidth]) -> Iterator[Text]:
    if not pairs:
        return
    yield head("between pairs of ranks, one pair at a time")
    shown = sorted(pairs, key=lambda p: p.bandwidth_gbit_s.value)[:PAIRS_SHOWN]
    rows = [
        (
            f"{p.first}-{p.second}",
            "host" if p.same_host else "network",
            "-" if p.peer_access is None else "yes" if p.peer_access else "no",
            format_bytes(p.bytes),
            f"{p.bandwidth_gbit_s.value:.3g}",
        )
        for p in shown
    ]
    yield from table(
        (("ranks", ""), ("over", ""), ("peer", "access"), ("message", ""), ("rate", "Gbit/s")), rows
    )


def _memory(found: Checkup) -> Iterator[Text]:
    if not found.memory:
        return
    yield head("memory of the rank that holds most, by phase of a step")
    rows = [
        (
            p.phase,
            str(p.rank),
            format_bytes(p.host_bytes),
            "-" if p.device_peak_bytes is None else format_bytes(p.device_peak_bytes),
        )
        for p in found.memory
    ]
    yield from table((("after", ""), ("rank", ""), ("host", ""), ("device", "peak")), rows)
