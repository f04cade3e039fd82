"""Read how many tokens each step had on each rank, where an own loop tells, and how the ranks' own times go with them.

Tokens and times are taken less their mean over the ranks of the same step, and then less each rank's mean over the
round. What all ranks share (drift, a longer batch for everybody) and what a rank always has (a slow machine) is thereby
left out, and what remains of the times is compared with what remains of the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from scaling.analysis.decompose.light import grids_of
from scaling.analysis.decompose.quantities import DURATIONS, PHASES
from scaling.analysis.statistics.rounds import Floats
from scaling.records.frames import ITS_PART, Frame, few_rounds
from scaling.spec.schedule import PROBE

OWN_PHASES = PHASES[:-1]
"""What a rank does by itself; `exposed` is left out, since that is waiting for others."""
_OWN = [duration for duration in DURATIONS if duration.meta.output_name() in OWN_PHASES]
XX, MEAN, MOST, COUNT = "tokens.xx", "tokens.mean", "tokens.most", "tokens.count"
PLACE = ["launch", "round"]
Key = tuple[int, int]


def with_phase(phase: str) -> str:
    """Name of the sum of products of tokens and a phase's time."""
    return f"tokens.x.{phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """The tokens of a trial's steps with phase stamps, in blocks in which every rank tells all of them."""

    sums: Mapping[str, Mapping[Key, float]] = field(default_factory=dict)
    """By name and (launch, round).

    XX: of squares; `with_phase`: of products, ns; COUNT: how many; MEAN: tokens of a rank and step; MOST: those of the
    rank that has most of them in its step, mean over the steps.
    """
    by_rank: pl.DataFrame = field(default_factory=pl.DataFrame)
    """(launch, round, rank, tokens): means over a rank's steps."""
    detailed: Mapping[Key, Floats] = field(default_factory=dict)
    """S x R: the steps of each round's detailed block."""
    light: Mapping[Key, Floats] = field(default_factory=dict)
    """S x R: those of its block without details."""


def read_tokens(own: Frame, n: int) -> TokenRows | None:
    """None where no step tells its tokens. `own`: the steps of `n` ranks together."""
    if "tokens" not in own.collect_schema().names():
        return None
    told = own.filter((pl.col("arm") == PROBE) & pl.col("tokens").is_not_null()).select(
        *PLACE, "block", "step", "rank", "detailed", "tokens", *_OWN, ITS_PART
    )
    sums: dict[str, dict[Key, float]] = {}
    ranks: list[pl.DataFrame] = []
    grids: dict[bool, dict[Key, Floats]] = {True: {}, False: {}}
    for steps, _ in few_rounds(told, told.clear()):
        whole = steps.filter(pl.len().over("launch", "block", "step") == n)
        if whole.is_empty():
            continue
        for row in _sums(whole).iter_rows(named=True):
            key = (row.pop("launch"), row.pop("round"))
            for name, value in row.items():
                sums.setdefault(name, {})[key] = value
        ranks.append(whole.group_by(*PLACE, "rank").agg(pl.col("tokens").mean()))
        for detailed, found in grids.items():
            rows = whole.filter(pl.col("detailed") == detailed)
            found |= {key: grid["tokens"] for key, grid in grids_of(rows, n, {"tokens": pl.col("tokens")})}
    if not ranks:
        return None
    return TokenRows(sums=sums, by_rank=pl.concat(ranks), detailed=grids[True], light=grids[False])


def _sums(steps: pl.DataFrame) -> pl.DataFrame:
    """`TokenRows.sums`, a row a round."""
    values = pl.col("tokens", *OWN_PHASES).cast(pl.Float64)
    apart = steps.with_columns(most=pl.col("tokens").max().over("launch", "block", "step"), mean="tokens")
    apart = apart.with_columns(values - values.mean().over("launch", "block", "step"))
    own = pl.col("tokens", *OWN_PHASES)
    apart = apart.with_columns(own - own.mean().over(*PLACE, "rank"))
    products = {
        with_phase(phase): (pl.col("tokens") * pl.col(phase)).sum().cast(pl.Float64) for phase in OWN_PHASES
    }
    return apart.group_by(*PLACE).agg(
        (pl.col("tokens") ** 2).sum().alias(XX),
        pl.len().cast(pl.Float64).alias(COUNT),
        pl.col("mean").mean().alias(MEAN),
        pl.col("most").mean().alias(MOST),
        **products,
    )
