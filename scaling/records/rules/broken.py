"""Find rows that break a rule: by themselves, beside others of their place, or at another time than these."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from scaling.records.tables import Tables

ACROSS_NS = 500_000
"""Allowed between ranks, beside twice the bound of their clocks."""
BLOCK, STEP = ["launch", "rank", "block"], ["launch", "rank", "block", "step"]


def broken(frame: pl.DataFrame, rules: dict[str, pl.Expr]) -> Iterator[pl.DataFrame]:
    """Rows that break a rule, with the rule's words."""
    flags = frame.select(
        *(rule.fill_null(value=False).alias(str(k)) for k, rule in enumerate(rules.values()))
    )
    for k, why in enumerate(rules):
        if flags[str(k)].any():
            yield frame.filter(flags[str(k)]).with_columns(why=pl.lit(why))


def unlike(frame: pl.DataFrame, place: list[str], names: list[str], why: str) -> Iterator[pl.DataFrame]:
    """Rows whose values are not those of most rows of their place; all rows where there is no majority."""
    facts = pl.struct(names)
    differing = frame.filter(facts.n_unique().over(place) > 1)
    if differing.is_empty():
        return
    count = pl.len().over(*place, *names)
    most = differing.with_columns(count=count).with_columns(most=pl.col("count").max().over(place))
    whole = pl.len().over(place)
    odd = most.filter((pl.col("count") < pl.col("most")) | (pl.col("most") * 2 <= whole))
    yield odd.with_columns(why=pl.lit(why))


def apart_in_time(
    tables: Tables, rows: pl.DataFrame, place: list[str], begin: str, end: str
) -> Iterator[pl.DataFrame]:
    """Rows of ranks that worked together and yet never at the same time: the rank farthest from the others."""
    bounds = pl.DataFrame(
        [(file.launch, file.clock_bound_ns or 0) for file in tables.ranks],
        schema={"launch": pl.Int64, "bound": pl.Int64},
        orient="row",
    )
    bounds = bounds.group_by("launch").agg(allowed=2 * pl.col("bound").max() + ACROSS_NS)
    group = [*place, "group"]
    rows = rows.with_columns(group=pl.col("rank") // pl.col("world_size"))
    apart = (
        rows.group_by(group)
        .agg(begun=pl.col(begin).max(), ended=pl.col(end).min())
        .join(bounds, on="launch", how="left")
        .filter(pl.col("begun") > pl.col("ended") + pl.col("allowed").fill_null(ACROSS_NS))
    )
    if apart.is_empty():
        return
    middle = (pl.col(begin) + pl.col(end)) // 2
    off = (middle - middle.median().over(group)).abs()
    odd = rows.join(apart, on=group, how="semi").filter(off == off.max().over(group))
    yield odd.with_columns(why=pl.lit("it worked with other ranks and never at the same time as they"))
