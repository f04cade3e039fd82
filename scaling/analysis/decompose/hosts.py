"""Find slow hosts: compare each host's own step and own link with the median host. Pure.

With placement=spread all ranks run in sub-groups of every size, so one bare_all block has every host's own step at the
same time without any waiting. A pair of ranks is as fast as the slower of its two links. Each host is paired with two
others (Plan.pairings), and the better pair shows the host's own link.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from scaling.analysis.results import HostSpeed, Measured
from scaling.analysis.statistics.rounds import MS, Formula, Rounds, level_of_each
from scaling.records.frames import in_memory
from scaling.records.tables import Tables
from scaling.spec.plan import Plan
from scaling.spec.schedule import BARE_ALL, PAIRS

FLOOR = 0.01
"""A host that is slower than the median host by less than this fraction is not called slow."""
QUANTITIES = ("step", "link")

_ROUND = ["launch", "round"]
_PLACE = {"launch": pl.Int64, "rank": pl.Int64, "place": pl.Int64}
_PAIR = {**_PLACE, "group": pl.Int64, "pair": pl.Int64, "partner": pl.Int64}


def hosts(tables: Tables, plan: Plan, *, floor: float, clock_bound_ns: int = 0) -> tuple[HostSpeed, ...]:
    """Every host of the launch; empty where ranks are packed, or all on one host.

    `tables`: of launches that measured the largest world size. `floor`: A/A floor, a fraction. `clock_bound_ns`: error
    of corrected clocks.
    """
    topology = plan.spec.topology
    if not topology.spread or topology.hosts_of(plan.ranks) < 2:
        return ()
    found = sorted({(file.host, file.hostname) for file in tables.ranks})
    if not found:  # no launch measured it
        return ()
    place = {(file.launch, file.rank): found.index((file.host, file.hostname)) for file in tables.ranks}
    messages = in_memory(tables.buckets.filter(pl.col("arm") == PAIRS))
    rounds = _rounds(
        {"step": _own_steps(tables, plan, place), "link": _links(messages, tables, place)}, plan.spec.seed
    )
    size = messages.select(pl.col("bytes").mean()).item()
    beyond, level = max(floor, FLOOR), level_of_each(len(found) * len(QUANTITIES))
    rows = []
    for at, (host, hostname) in enumerate(found):
        step_ratio = rounds.ratio(_over(f"step.{at}", f"step.median.{at}"))
        link, link_ratio = (
            rounds.ratio(_busbw(f"link.{at}")),
            rounds.ratio(_over(f"link.median.{at}", f"link.{at}")),
        )
        # The clocks' error as a share of a message's time.
        off = 0.0 if link is None else clock_bound_ns * link.value / (8 * size)
        slow = {
            "step": _beyond(rounds.ratio(_over(f"step.{at}", f"step.median.{at}"), level=level), beyond),
            "link": _beyond(
                rounds.ratio(_over(f"link.{at}", f"link.median.{at}"), level=level), beyond + off
            ),
        }
        rows.append(
            HostSpeed(
                host=host,
                hostname=hostname,
                ranks=tuple(sorted({rank for (_, rank), own in place.items() if own == at})),
                step_ms=rounds.ratio(f"step.{at}", scale=MS),
                step_ratio=step_ratio,
                link_gbit_s=link and link.widened(off * link.value),
                link_ratio=link_ratio and link_ratio.widened(off * link_ratio.value),
                slow_in=tuple(name for name in QUANTITIES if slow[name]),
            )
        )
    return tuple(rows)


def _over(name: str, base: str) -> Formula:
    return lambda m: m[name] / m[base]


def _busbw(name: str) -> Formula:
    """Gbit/s of ns a byte."""
    return lambda m: 8 / m[name]


def _beyond(ratio: Measured | None, floor: float) -> bool:
    """Whether a time over the median host's is above 1 by more than `floor`."""
    return ratio is not None and ratio.surely_above(1 + floor)


def _own_steps(tables: Tables, plan: Plan, place: Mapping[tuple[int, int], int]) -> pl.DataFrame:
    """(launch, round, place, value): mean step without DDP, ns, over the blocks in which every rank ran at once.

    Only world sizes whose sub-groups leave no rank out are used, so that all hosts have the same load.
    """
    largest = max(plan.trials, key=lambda t: t.world_size)
    chosen = (pl.col("arm") == BARE_ALL) & (pl.col("batch") == largest.batch)
    length = (pl.col("end_ns") - pl.col("begin_ns")).sum()
    blocks = tables.steps.filter(chosen).group_by(*_ROUND, "rank", "block").agg(length=length, steps=pl.len())
    ranks, each = pl.col("rank").n_unique(), in_memory(blocks)
    whole = each.filter(ranks.over("launch", "block") == ranks.over("launch"))
    where = pl.DataFrame([(*key, at) for key, at in place.items()], schema=_PLACE, orient="row")
    return (
        whole.join(where, on=["launch", "rank"])
        .group_by(*_ROUND, "place")
        .agg(value=pl.col("length").sum() / pl.col("steps").sum())
    )


def _links(messages: pl.DataFrame, tables: Tables, place: Mapping[tuple[int, int], int]) -> pl.DataFrame:
    """(launch, round, place, value): ns a byte of the model's buckets with the better of the hosts it was paired with.

    A message takes from its pair's later launch to its later done, as in scaling.analysis.decompose.merge. Its busbw
    equals its algbw, since the factor 2 (n - 1) / n is 1 for a pair.
    """
    pairs = [
        (file.launch, file.rank, place[file.launch, file.rank], key, min(ranks), place[file.launch, partner])
        for file in tables.ranks
        for key, ranks in file.groups.items()
        for partner in ranks
        if key < 0 and partner != file.rank and (file.launch, partner) in place
    ]
    message = ["launch", "block", "step", "seq", "pair"]
    took = pl.col("done_ns").max().over(message) - pl.col("launch_ns").max().over(message)
    return (
        messages.join(pl.DataFrame(pairs, schema=_PAIR, orient="row"), on=["launch", "rank", "group"])
        .filter(pl.len().over(message) == 2)
        .with_columns(took=took)
        .group_by(*_ROUND, "place", "partner")
        .agg(value=pl.col("took").sum() / pl.col("bytes").sum())
        .group_by(*_ROUND, "place")
        .agg(pl.col("value").min())
    )


def _rounds(found: Mapping[str, pl.DataFrame], seed: int) -> Rounds:
    """`<name>.<place>` of each frame (launch, round, place, value), and `<name>.median.<place>`.

    The latter is the median host's value in the rounds of that place.
    """
    index = pl.concat([frame.select(_ROUND) for frame in found.values()]).unique().sort(_ROUND)
    values = {}
    for name, frame in found.items():
        median = frame.group_by(_ROUND).agg(pl.col("value").median())
        each = {at: part for (at,), part in frame.partition_by("place", as_dict=True).items()}
        for at, part in {**each, "median": median}.items():
            aligned = index.join(part, on=_ROUND, how="left", maintain_order="left")["value"]
            values[f"{name}.{at}"] = aligned.cast(pl.Float64).fill_null(float("nan")).to_numpy()
        for (
            at
        ) in each:  # launches may have used other hosts: compare each host with the median of its own rounds
            theirs = np.isfinite(values[f"{name}.{at}"])
            values[f"{name}.median.{at}"] = np.where(theirs, values[f"{name}.median"], np.nan)
    return Rounds(values, index["launch"].to_numpy(), seed=seed)
