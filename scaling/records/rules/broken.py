"""Find rows that break a rule: by themselves, beside others of their place, or at another time than these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from scaling.records.rank import RankFile

ACROSS_NS = 500_000
"""Allowed between ranks, beside twice the bound of their clocks."""
MANY = 4096
"""Beyond so many ranks, most of their rows are given up before ranks are compared."""
BLOCK, STEP = ["launch", "rank", "block"], ["launch", "rank", "block", "step"]


def broken(frame: pl.DataFrame, rules: dict[str, pl.Expr]) -> Iterator[pl.DataFrame]:
    """Rows that break a rule, with the rule's words."""
    flags = frame.select(
        *(rule.fill_null(value=False).alias(str(k)) for k, rule in enumerate(rules.values()))
    )
    for k, why in enumerate(rules):
        if flags[str(k)].any():
            yield frame.filter(flags[str(k)]).with_columns(why=pl.lit(why))


def unlike(
    frame: pl.DataFrame, place: list[str], names: list[str], why: str, many: pl.Expr | None = None
) -> Iterator[pl.DataFrame]:
    """Rows whose values are not those of most rows of their place; all rows where there is no majority.

    `many`: how many rows each stands for.
    """
    each = pl.lit(1) if many is None else many
    facts = pl.struct(names)
    differing = frame.filter(facts.n_unique().over(place) > 1)
    if differing.is_empty():
        return
    weighed = differing.with_columns(each=each)
    count, whole = pl.col("each").sum().over(*place, *names), pl.col("each").sum().over(place)
    most = weighed.with_columns(count=count).with_columns(most=pl.col("count").max().over(place))
    odd = most.filter((pl.col("count") < pl.col("most")) | (pl.col("most") * 2 <= whole))
    yield odd.with_columns(why=pl.lit(why))


def together(rows: pl.LazyFrame, place: list[str], begin: str, end: str) -> pl.DataFrame:
    """What `apart_in_time` needs of some ranks' rows; `place`: columns that tell which rows belong together.

    Of very many ranks, only those that are at an end, since a block of theirs has a million rows.
    """
    group = pl.col("rank") // pl.col("world_size")
    columns = [*place, "rank", "arm"]
    found = rows.select(*columns, "world_size", begun=begin, ended=end, group=group).collect()
    if (found["world_size"] > MANY).any():
        begun, ended, middle = pl.col("begun"), pl.col("ended"), pl.col("begun") + pl.col("ended")
        ends = (begun.arg_max(), ended.arg_min(), middle.arg_min(), middle.arg_max())
        of_groups = found.with_row_index("at").group_by(*place, "group")
        kept = of_groups.agg(at=pl.concat_list([pl.col("at").get(end) for end in ends]))
        found = found[kept["at"].explode().unique().sort()]
    return found.drop("world_size")


def apart_in_time(files: Sequence[RankFile], rows: pl.DataFrame, place: list[str]) -> Iterator[pl.DataFrame]:
    """Rows of ranks that worked together and yet never at the same time: the rank farthest from the others.

    `rows`: of `together`, of all ranks.
    """
    bounds = pl.DataFrame(
        [(file.launch, file.clock_bound_ns or 0) for file in files],
        schema={"launch": pl.Int64, "bound": pl.Int64},
        orient="row",
    )
    bounds = bounds.group_by("launch").agg(allowed=2 * pl.col("bound").max() + ACROSS_NS)
    group = [*place, "group"]
    apart = (
        rows.group_by(group)
        .agg(begun=pl.col("begun").max(), ended=pl.col("ended").min())
        .join(bounds, on="launch", how="left")
        .filter(pl.col("begun") > pl.col("ended") + pl.col("allowed").fill_null(ACROSS_NS))
    )
    if apart.is_empty():
        return
    middle = (pl.col("begun") + pl.col("ended")) // 2
    off = (middle - middle.median().over(group)).abs()
    odd = rows.join(apart, on=group, how="semi").filter(off == off.max().over(group))
    yield odd.with_columns(why=pl.lit("it worked with other ranks and never at the same time as they"))
