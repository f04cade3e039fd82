"""Find slow hosts: compare each host's own step and own link with the median host. Pure.

With placement=spread all ranks run in sub-groups of every size, so one bare_all block has every host's own step at the
same time without any waiting. A pair of ranks is as fast as the slower of its two links. Each host is paired with two
others (Plan.pairings), and the better pair shows the host's own link.

Own steps of many ranks: how far they are apart, and the hosts with the slowest of them. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl

from scaling.analysis.results import HostSpeed, HostSteps, OwnStep, RankSpread
from scaling.analysis.statistics.rounds import MS, Floats, Means, Rounds, level_of_each
from scaling.records.decode import RankFile
from scaling.records.tables import Tables, in_memory
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ALL, PAIRS

FLOOR = 0.01
"""A host that is slower than the median host by less than this fraction is not called slow."""
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
    named_hosts = sorted({(file.host, file.hostname) for file in tables.ranks})
    if not named_hosts:  # no launch measured it
        return ()
    place = {(file.launch, file.rank): named_hosts.index((file.host, file.hostname)) for file in tables.ranks}
    messages = in_memory(tables.buckets.filter(pl.col("arm") == PAIRS))
    rounds = _rounds(
        {"step": _own_steps(tables, plan, place), "link": _links(messages, tables, place)}, plan.spec.seed
    )
    size = messages.select(pl.col("bytes").mean()).item()
    beyond, level = max(floor, FLOOR), level_of_each(len(named_hosts) * 2)  # its step and its link
    rows = []
    for at, (host, hostname) in enumerate(named_hosts):
        link = rounds.ratio(partial(_gbit_s, f"link.{at}"))
        link_ratio = rounds.ratio(partial(_over, f"link.median.{at}", f"link.{at}"))
        # The clocks' error as a share of a message's time.
        off = 0.0 if link is None else clock_bound_ns * link.value / (8 * size)
        slow_in = []
        for name, bar in (("step", beyond), ("link", beyond + off)):
            longer = rounds.ratio(partial(_over, f"{name}.{at}", f"{name}.median.{at}"), level=level)
            if longer is not None and longer.surely_above(1 + bar):
                slow_in.append(name)
        rows.append(
            HostSpeed(
                host=host,
                hostname=hostname,
                ranks=tuple(sorted({rank for (_, rank), index in place.items() if index == at})),
                step_ms=rounds.ratio(f"step.{at}", scale=MS),
                step_ratio=rounds.ratio(partial(_over, f"step.{at}", f"step.median.{at}")),
                link_gbit_s=link and link.widened(off * link.value),
                link_ratio=link_ratio and link_ratio.widened(off * link_ratio.value),
                slow_in=tuple(slow_in),
            )
        )
    return tuple(rows)


def _over(name: str, base: str, m: Means) -> Floats:
    return m[name] / m[base]


def _gbit_s(ns_a_byte: str, m: Means) -> Floats:
    return 8 / m[ns_a_byte]


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

    A message takes from its pair's later launch to its later done, as in scaling.analysis.decompose.detailed. Its busbw
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


def _rounds(frames: Mapping[str, pl.DataFrame], seed: int) -> Rounds:
    """`<name>.<place>` of each frame (launch, round, place, value), and `<name>.median.<place>`.

    The latter is the median host's value in the rounds of that place.
    """
    index = pl.concat([frame.select(_ROUND) for frame in frames.values()]).unique().sort(_ROUND)
    values = {}
    for name, frame in frames.items():
        # Launches may have used other hosts: each host is compared with the median of its own rounds.
        beside = frame.with_columns(median=pl.col("value").median().over(_ROUND))
        for (at,), part in beside.partition_by("place", as_dict=True).items():
            aligned = index.join(part, on=_ROUND, how="left", maintain_order="left")
            values[f"{name}.{at}"] = aligned["value"].cast(pl.Float64).to_numpy()
            values[f"{name}.median.{at}"] = aligned["median"].cast(pl.Float64).to_numpy()
    return Rounds(values, index["launch"].to_numpy(), seed=seed)


FEW = 16
"""Up to so many ranks a report has each of them."""
HOSTS, RANKS = 8, 3
"""Hosts that are named, and ranks of each."""


def spread(tables: Tables, plan: Plan, *, floor: float) -> RankSpread | None:
    """None for few ranks, and where their own steps were not measured.

    `tables`: of launches that measured the largest world size. `floor`: A/A floor, a fraction.
    """
    if plan.ranks <= FEW:
        return None
    chosen = (pl.col("arm") == BARE_ALL) & (pl.col("world_size") == plan.ranks)
    took = (pl.col("end_ns") - pl.col("begin_ns")).mean()
    rows = in_memory(tables.steps.filter(chosen).group_by("launch", "round", "rank").agg(took=took))
    if rows.is_empty():
        return None
    wide = rows.sort("rank").pivot(on="rank", index=_ROUND, values="took").sort(_ROUND)
    numbers = [int(name) for name in wide.columns[len(_ROUND) :]]
    steps_ns = np.ascontiguousarray(wide.drop(_ROUND).to_numpy())
    median_ns = np.nanmedian(steps_ns, axis=1)
    ratios = np.nanmean(steps_ns / median_ns[:, None], axis=0)
    steps_ms = np.nanmean(steps_ns, axis=0) * MS
    rounds, bar = Rounds({}, wide["launch"].to_numpy(), seed=plan.spec.seed), 1 + max(floor, FLOOR)

    def own_step(at: int) -> OwnStep | None:
        """That of the rank in column `at`."""
        median = np.where(np.isfinite(steps_ns[:, at]), median_ns, np.nan)
        here = rounds.extend({"own": steps_ns[:, at], "median": median})
        over = partial(_over, "own", "median")
        step_ms, ratio = here.ratio("own", scale=MS), here.ratio(over)
        sure = here.ratio(over, level=level_of_each(len(numbers)))
        if step_ms is None or ratio is None or sure is None:
            return None
        return OwnStep(rank=numbers[at], step_ms=step_ms, ratio=ratio, slow=sure.surely_above(bar))

    slower = [own_step(int(at)) for at in np.flatnonzero(ratios > bar)]
    least, p5, middle, p95, most = np.percentile(steps_ms, [0, 5, 50, 95, 100]).tolist()
    return RankSpread(
        world_size=plan.ranks,
        least_ms=least,
        p5_ms=p5,
        median_ms=middle,
        p95_ms=p95,
        most_ms=most,
        slow=sum(step is not None and step.slow for step in slower),
        hosts=_hosts(tables.ranks, numbers, own_step, ratios),
    )


def _hosts(
    files: Sequence[RankFile],
    numbers: Sequence[int],
    own_step: Callable[[int], OwnStep | None],
    ratios: Floats,
) -> tuple[HostSteps, ...]:
    """The hosts with the slowest ranks. `own_step`, `ratios`: by the columns of the ranks `numbers`."""
    column = {rank: at for at, rank in enumerate(numbers)}
    columns_of_host: dict[tuple[int, str], set[int]] = {}
    for file in files:
        if file.rank in column:
            columns_of_host.setdefault((file.host, file.hostname), set()).add(column[file.rank])
    worst = sorted(columns_of_host.items(), key=lambda item: -max(ratios[at] for at in item[1]))
    host_steps = []
    for (host, hostname), columns in worst[:HOSTS]:
        slowest = sorted(columns, key=lambda at: -ratios[at])[:RANKS]
        host_steps.append(
            HostSteps(
                host=host,
                hostname=hostname,
                ranks=len(columns),
                ratio=float(np.mean([ratios[at] for at in columns])),
                slowest=tuple(step for step in map(own_step, slowest) if step is not None),
            )
        )
    return tuple(host_steps)
