"""Strategies side by side: a table, which is fastest and why, and ranks that together do less than one alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling.analysis.results import Measured, PeakMemory, Point, StrategyResult, at
from scaling.report.model import Column, Table, tabulated
from scaling.report.text import NONE, cause_name, cell, count, quantity, ranks, status_name, value_of
from scaling.units import format_bytes, significant

NOTE = (
    "times x: throughput relative to the first strategy in the same rounds; transfer, skew: exposed wait per step; "
    "state: parameters, gradients and optimizer per rank; ±: half of the 95 % interval"
)
SHARDING_TERMS = ("straggler", "imbalance", "link_latency", "link_bandwidth", "overlap", "strategy_overhead")
"""Terms of the loss that a strategy can change."""


_Row = tuple[StrategyResult, Point]
COLUMNS: tuple[Column[_Row], ...] = (
    ("strategy", "", lambda row: row[0].parallel.strategy),
    ("mesh", "", lambda row: _mesh(*row)),
    ("ranks", "", lambda row: str(row[1].world_size)),
    ("step", "ms", lambda row: cell(row[1].step_ms)),
    ("times", "x", lambda row: _times(row[0], row[1].world_size)),
    ("efficiency", "%", lambda row: cell(row[1].efficiency, 100)),
    ("transfer", "ms", lambda row: value_of(row[1].parts_ms.exposed_transfer)),
    ("skew", "ms", lambda row: value_of(row[1].parts_ms.exposed_skew)),
    ("sent", "MiB", lambda row: _mib(_sent_bytes(row[1]))),
    ("state", "MiB", lambda row: _mib(state_bytes(row[1].memory))),
    ("status", "", lambda row: status_name(row[1].status)),
)


def strategy_table(strategies: Sequence[StrategyResult]) -> Table:
    """A row for each strategy and world size above 1, or for the only one."""
    rows = [(strategy, point) for strategy in strategies for point in _shown(strategy)]
    return tabulated(rows, COLUMNS, label="Strategies side by side", note=NOTE)


def _shown(strategy: StrategyResult) -> Sequence[Point]:
    several = [p for p in strategy.points if p.world_size > 1]
    return several or strategy.points


def _times(strategy: StrategyResult, n: int) -> str:
    """Relative to the first strategy, which alone has no ratio at any world size."""
    ratio = _ratio(strategy, n)
    first = all(against.throughput is None for against in strategy.against_first)
    return cell(ratio) if ratio else "1" if first else NONE


def _sent_bytes(point: Point) -> int:
    sent = sum(c.bytes for c in point.comm.collectives) if point.comm else 0
    return sent or (point.comm.bytes_per_step if point.comm else 0)


def _mib(size: int | None) -> str:
    return significant(size / 2**20) if size else NONE


def _ratio(strategy: StrategyResult, n: int) -> Measured | None:
    against_first = at(n, strategy.against_first)
    return against_first.throughput if against_first else None


def _mesh(strategy: StrategyResult, point: Point) -> str:
    degrees = point.parallel or strategy.parallel
    divided = f" x {degrees.tensor}" if degrees.tensor > 1 else ""
    return f"{degrees.replicate} x {degrees.shard}{divided}"


def state_bytes(memory: PeakMemory) -> int | None:
    """Parameters, gradients and optimizer of a rank; None where one is not known."""
    parts = (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes)
    return None if any(p is None for p in parts) else sum(p or 0 for p in parts)


def strategies_answer(strategies: Sequence[StrategyResult]) -> str:
    """Which strategy is fastest at the largest world size, why, and what it holds; empty where fewer than two ran."""
    ran = [strategy for strategy in strategies if _last(strategy).step_ms is not None]
    missing = [strategy.parallel.strategy for strategy in strategies if strategy not in ran]
    gone = f" {', '.join(missing)} did not fit into memory." if missing else ""
    if len(ran) < 2:
        return f"Only {ran[0].parallel.strategy} could be measured.{gone}" if ran else ""
    n = _last(ran[0]).world_size
    speeds = [(1.0 if (m := _ratio(strategy, n)) is None else m.value, strategy) for strategy in ran]
    best = max(speeds, key=lambda pair: pair[0])[1]
    apart, told = [strategy for strategy in ran if _apart(strategy, n)], "; ".join(_told(ran, n))
    if not apart:
        return f"At {ranks(n)} {_named(ran)} are not distinguishable in speed: {told}.{_memory(ran)}{gone}"
    if best in apart:  # each was measured against the first alone
        measured = [strategy for strategy in ran if _ratio(strategy, n) is not None]
        alike = [strategy for strategy in measured if strategy is best or not _faster(best, strategy, n)]
    else:  # the first, or one that is not told from it
        alike, best = [strategy for strategy in ran if strategy not in apart], ran[0]
    others = [strategy for strategy in ran if strategy not in alike]
    fastest = f"{_named(alike)} are" if len(alike) > 1 else f"{best.parallel.strategy} is"
    return f"At {ranks(n)} {fastest} fastest: {told}{_why(best, others)}.{_memory(ran)}{gone}"


def _apart(strategy: StrategyResult, n: int) -> bool:
    against_first = at(n, strategy.against_first)
    return against_first is not None and against_first.distinguishable


def _faster(strategy: StrategyResult, other: StrategyResult, n: int) -> bool:
    """Whether the ratios of both to the first strategy are surely apart."""
    mine, theirs = _ratio(strategy, n), _ratio(other, n)
    return mine is not None and theirs is not None and (mine / theirs).surely_above(1)


def _told(ran: Sequence[StrategyResult], n: int) -> Iterator[str]:
    first = ran[0].parallel.strategy
    for strategy in ran:
        if (ratio := _ratio(strategy, n)) is not None:
            close = "" if _apart(strategy, n) else ", which is not distinguishable"
            yield f"{strategy.parallel.strategy} has {quantity(ratio)} times the throughput of {first}{close}"


def _why(best: StrategyResult, others: Sequence[StrategyResult]) -> str:
    """The term of the step that the slowest of the others has most more of, in ms."""
    slowest = max(others, key=lambda strategy: _ms(_last(strategy).step_ms))
    if _last(best).loss is None or _last(slowest).loss is None:
        return ""
    lost = [(_lost_ms(best, term), _lost_ms(slowest, term), term) for term in SHARDING_TERMS]
    mine, theirs, name = max(lost, key=lambda term: term[1] - term[0])
    if theirs - mine <= 0:
        return ""
    return (
        f"; {slowest.parallel.strategy} loses {theirs:.3g} ms of a step to {cause_name(name)}, "
        f"{best.parallel.strategy} {max(mine, 0):.3g}"
    )


def _lost_ms(strategy: StrategyResult, term: str) -> float:
    point = _last(strategy)
    return _ms(getattr(point.loss, term)) * _ms(point.step_ms)


def _memory(ran: Sequence[StrategyResult]) -> str:
    told = [
        f"{strategy.parallel.strategy} {format_bytes(rank_bytes)}"
        for strategy in ran
        if (rank_bytes := state_bytes(_last(strategy).memory)) is not None
    ]
    return f" A rank holds parameters, gradients and optimizer of {', '.join(told)}." if told else ""


def _named(ran: Sequence[StrategyResult]) -> str:
    *most, last = [strategy.parallel.strategy for strategy in ran]
    return f"{', '.join(most)} and {last}"


def _last(strategy: StrategyResult) -> Point:
    return max(strategy.points, key=lambda p: p.world_size)


def _ms(value: Measured | None) -> float:
    return value.value if value is not None else 0.0


NAMED = 3
"""Rows that a sentence names; of more it gives the number."""

Row = tuple[int, str, Measured | None]
"""World size, what the row is called (empty: it is the only one), samples a second over those of one rank."""


def slower_lines(rows: Sequence[Row]) -> Iterator[str]:
    """`2 ranks are slower than 1 with batch=4 (0.62 ±0.03 times)`, for each world size where that is sure."""
    for n in sorted({size for size, _, _ in rows if size > 1}):
        here = [(name, speedup) for size, name, speedup in rows if size == n and speedup is not None]
        slower = [(name, speedup) for name, speedup in here if speedup.surely_below(1.0)]
        if not slower:
            continue
        claim = f"{n} ranks are slower than 1"
        if len(here) == len(slower) > 1:
            ends = [value_of(f(slower, key=lambda pair: pair[1].value)[1]) for f in (min, max)]
            yield f"{claim} in every row: {' to '.join(dict.fromkeys(ends))} times its samples a second"
        elif len(slower) == 1:
            name, speedup = slower[0]
            yield f"{claim}{f' with {name}' if name else ''}: {quantity(speedup)} times its samples a second"
        else:
            each = [f"{name} ({quantity(speedup)} times its samples a second)" for name, speedup in slower]
            yield f"{claim} with {listed(each)}"


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; of more than NAMED the first ones and how many others."""
    shown = list(names[:NAMED])
    if len(names) > NAMED:
        shown.append(count(len(names) - NAMED, "other"))
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
