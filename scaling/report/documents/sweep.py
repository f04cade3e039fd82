"""Several runs as one table, and what is best in a sentence."""

from __future__ import annotations

from collections.abc import Iterator

from scaling.analysis.results import Sweep, SweepBest, SweepRow
from scaling.plain import plain
from scaling.report.model import Table, heads
from scaling.report.strategies import listed, slower_lines
from scaling.report.text import (
    NONE,
    cause_name,
    cell,
    percent,
    quantity,
    ranks,
    sentence,
    status_name,
    value_of,
)

TITLE = "all runs"
NOTE = (
    "efficiency: 100 % would be as many times one rank's samples a second as there are ranks; "
    "cause: the largest one that is shown, and its share of the step; ±: half of the 95 % interval, within a run"
)


APART = (
    "a sample of one model or task is other work than a sample of another, so each has a best row of its own"
)


def table(sweep: Sweep) -> Table:
    """A row for each run, world size and case, under the settings that differ."""
    done = all(row.status == "done" for row in sweep.rows)
    batches = "batch_per_rank" not in sweep.keys and "batch" not in sweep.keys and _batches_differ(sweep)
    columns = heads(
        *map(plain, sweep.keys),
        "ranks",
        *((("batch", "a rank"),) if batches else ()),
        ("samples", "1/s"),
        ("efficiency", "%"),
        ("cause", "of the step"),
        *(() if done else ("status",)),
    )
    rows = tuple(
        (
            *(plain(row.settings[key]) for key in sweep.keys),
            str(row.world_size),
            *((str(row.batch or NONE),) if batches else ()),
            cell(row.samples_per_s),
            cell(row.efficiency, 100),
            _cause(row),
            *(() if done else (status_name(row.status),)),
        )
        for row in sweep.rows
    )
    return Table(columns=columns, rows=rows, label="All runs", note=NOTE)


def answer(sweep: Sweep) -> str:
    """What is best, and which ranks are slower than one of them alone."""
    said = [*(_best(sweep, one) for one in sweep.best), *_slower(sweep)]
    if len(sweep.best) > 1:
        said.insert(0, APART)
    if not said:
        said = ["nothing can be said of which is best: no two rows have samples of the same kind"]
    if sweep.contended:
        said.append("a run was contended, so this is a hint and not a finding")
    return " ".join(map(sentence, said))


def slower(sweep: Sweep) -> str:
    """`2 ranks are slower than 1 with ...`; empty where none are."""
    return " ".join(map(sentence, _slower(sweep)))


def _batches_differ(sweep: Sweep) -> bool:
    return len({row.batch for row in sweep.rows}) > 1


def _cause(row: SweepRow) -> str:
    if row.cause is None or row.world_size == 1:
        return NONE
    hint = " (a hint)" if row.confidence == "low" else ""
    return f"{cause_name(row.cause)} {value_of(row.share, 100)} %{hint}"


def _best(sweep: Sweep, best: SweepBest) -> str:
    row = sweep.rows[best.row]
    said = f"the most samples a second, {quantity(row.samples_per_s)}, come with {_name(row)}"
    if row.samples_per_s is not None and row.samples_per_s.interval is None:
        return f"{said}, from too few rounds for an interval"
    if row.efficiency is not None and row.world_size > 1:
        said += f" (efficiency {percent(row.efficiency)})"
    if best.rivals:
        said += f"; not told from {listed([_name(sweep.rows[k]) for k in best.rivals])}"
    if _batches_differ(sweep):
        said += ". A larger batch takes fewer optimizer steps for the same samples"
    return said


def _slower(sweep: Sweep) -> Iterator[str]:
    yield from slower_lines([(row.world_size, plain(row.name), row.speedup) for row in sweep.rows])


def _name(row: SweepRow) -> str:
    size = ranks(row.world_size)
    return f"{plain(row.name)} at {size}" if row.name else size
