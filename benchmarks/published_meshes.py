"""How well a simulation forecasts published meshes of 64 GPUs and more on H100 from one published row of 8.

    python benchmarks/published_meshes.py

Reads the tables of llm-foundry and torchtitan (as published_series.py does). One number is fitted, a factor on all
kernels, to the throughput of 8 GPUs with FSDP; nothing else is, and nothing to the rows that judge. The same factor
then simulates 64, 128 and 256 GPUs, sharded or sharded and divided (tensor parallel, with sequence parallel, as
torchtitan has it), and a model of 70 B parameters from the row of 8 B. Beside it stands `always 1.0`: the throughput of
8 GPUs, where the model is the same.

A row that was compiled is held against a compiled row of 8 GPUs: the simulated program is eager, and the factor stands
for what compiling gains. Asynchronous tensor parallel, FP8, context and pipeline parallel rows are no programs that are
simulated. The micro-batch of a mesh with a tensor degree is that of its data-parallel rank. Selective checkpointing is
simulated as none, full checkpointing as it is. There is no bar: the table is what is asked for.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import mean

import published_series as series
from ending import exit_with
from harness import parser, result, skipped

BASE_GPUS, LEAST_GPUS = 8, 64
MESH = re.compile(r"FSDP(?: FULL_SHARD)?(?: (?P<shard>\d+))?(?: TP (?P<tensor>\d+))?(?: vanilla TP)?")
"""Strategies of rows that are simulated."""
BASES = (("Llama 3.1 8B", "no"), ("Llama 3.1 8B", "yes"), ("MPT 13b", ""))
"""Model of the rows of 8 GPUs, and whether it was compiled."""
JUDGED = {"Llama 3.1 8B": ("Llama 3.1 8B", "Llama 3.1 70B"), "MPT 13b": ("MPT 13b",)}

Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A row that judges. Tokens/s and GPU."""

    row: Row
    published: float
    simulated: float
    base: float | None
    """Of 8 GPUs with the same model."""

    @property
    def error(self) -> float:
        """Of the simulation."""
        return self.simulated / self.published - 1

    @property
    def of_one(self) -> float | None:
        """Error of `always 1.0`."""
        return None if self.base is None else self.base / self.published - 1

    def line(self) -> str:
        """Its row of the table."""
        mesh = self.row["strategy"].removesuffix(" vanilla TP")
        compiled = {"yes": "compiled", "no": "eager"}.get(self.row["compile"], "")
        kept, forecast, always = "-", "-", "-"
        if self.base is not None:
            kept, forecast = f"{self.published / self.base:.1%}", f"{self.simulated / self.base:.1%}"
            always = f"{self.of_one:+.1%}"
        return (
            f"{self.row['model']:<14} {mesh:<16} {compiled:<9} {self.row['gpus']:>5}  {self.published:>9.0f}  "
            f"{self.simulated:>9.0f}  {self.error:>+7.1%}  {kept:>9}  {forecast:>9}  {always:>7}"
        )


def tensor_of(row: Row) -> int | None:
    """The tensor degree of a row; None: its strategy is not simulated."""
    match = MESH.fullmatch(row["strategy"])
    if match is None:
        return None
    tensor = int(match["tensor"] or 1)
    shard = int(match["shard"] or int(row["gpus"]) // tensor)
    return tensor if shard * tensor == int(row["gpus"]) else None


def words_of(row: Row) -> list[str]:
    """The overrides of a row's mesh."""
    tensor = tensor_of(row)
    if tensor is None or tensor == 1:
        return []
    return ["parallel=fsdp_tp", f"parallel.tensor={tensor}", "parallel.sequence=true"]


def simulated_rows() -> list[Row]:
    """The rows of the tables that are programs which are simulated."""
    with series.TABLE.open(encoding="utf-8") as file:
        return [
            row
            for row in csv.DictReader(file)
            if row["precision"] in {"amp_bf16", "bf16"} and tensor_of(row) is not None
        ]


def base_of(rows: Sequence[Row], model: str, compiled: str) -> Row:
    """The row of 8 GPUs: of MPT the one of the series that goes on to 64. SystemExit where it is not there."""
    for row in rows:
        same = (row["model"], row["compile"], int(row["gpus"])) == (model, compiled, BASE_GPUS)
        if same and row["series"] and any(judges(row, other) for other in rows):
            return row
    raise SystemExit(f"{series.TABLE} has no row of {BASE_GPUS} GPUs for {model}")


def judges(base: Row, row: Row) -> bool:
    """Whether a row can be forecast from that base: as many tokens in a row, compiled or not, and both llama or MPT."""
    if int(row["gpus"]) < LEAST_GPUS or row["model"] not in JUDGED[base["model"]]:
        return False
    if any(row[key] != base[key] for key in ("seq_len", "compile")):
        return False
    return not base["model"].startswith("MPT") or row["series"] == base["series"]


def forecasts(base: Row, rows: Sequence[Row]) -> list[Forecast]:
    """Every row that judges, by the factor of the base."""
    first = series.answered(base, series.ask(base, *words_of(base)))
    stretch = series.stretch_for(first)
    targets = [row for row in rows if judges(base, row)]
    asked = [series.ask(row, *words_of(row), stretches=(stretch,)) for row in targets]
    with ThreadPoolExecutor(2) as pool:
        sizes = list(pool.map(series.answered, targets, asked))
    print(
        f"{base['model']}, {base['gpus']} GPUs: {first.rate:.0f} tokens/s and GPU, factor {stretch:.3f}",
        flush=True,
    )
    return [
        Forecast(
            row=row,
            published=size.rate,
            simulated=size.tokens / size.steps_s[0],
            base=first.rate if row["model"] == base["model"] else None,
        )
        for row, size in zip(targets, sizes, strict=True)
    ]


def main() -> int:
    """Run it."""
    parser(__doc__).parse_args()
    if not series.TABLE.is_file():
        return skipped(
            "published_meshes", f"{series.TABLE} is not there; SCALING_SHARED_DATA names the folder"
        )
    rows = simulated_rows()
    listed = [row for base in BASES for row in forecasts(base_of(rows, *base), rows)]
    print(
        f"{'model':<14} {'mesh':<16} {'':<9} {'GPUs':>5}  {'published':>9}  {'simulated':>9}  {'error':>7}  "
        f"{'over 8':>9}  {'simulated':>9}  {'1.0':>7}"
    )
    for row in listed:
        print(row.line())
    errors = [abs(row.error) for row in listed]
    same = [row for row in listed if row.of_one is not None]
    ones = [abs(row.of_one or 0.0) for row in same]
    of_same = [abs(row.error) for row in same]
    print(
        f"mean and worst of the absolute errors: simulated {mean(errors):.1%} and {max(errors):.1%}; of the same model "
        f"{mean(of_same):.1%} and {max(of_same):.1%}, always 1.0 {mean(ones):.1%} and {max(ones):.1%}"
    )
    return result(
        "published_meshes",
        ok=True,
        rows=len(listed),
        mean=round(mean(errors), 4),
        worst=round(max(errors), 4),
        same_mean=round(mean(of_same), 4),
        one_mean=round(mean(ones), 4),
    )


if __name__ == "__main__":
    exit_with(main)
