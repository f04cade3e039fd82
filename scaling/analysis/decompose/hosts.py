"""Find slow hosts: compare each host's own step and own link with the median host. Pure.

With placement=spread all ranks run in sub-groups of every size, so one bare_all block has every host's own step at the
same time without any waiting. A pair of ranks is as fast as the slower of its two links. Each host is paired with two
others (Plan.pairings), and the better pair shows the host's own link.

Own steps of many ranks: how far they are apart, and the hosts with the slowest of them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from scaling.analysis.results import HostSpeed, Measured
from scaling.analysis.results.machine import HostSteps, OwnStep, RankSpread
from scaling.analysis.statistics.rounds import MS, Floats, Formula, Rounds, level_of_each
from scaling.records.decode import RankFile
from scaling.records.tables import Tables, in_memory
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ALL, PAIRS

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
    named_hosts = sorted({(file.host, file.hostname) for file in tables.ranks})
    if not named_hosts:  # no launch measured it
        return ()
    place = {(file.launch, file.rank): named_hosts.index((file.host, file.hostname)) for file in tables.ranks}
    messages = in_memory(tables.buckets.filter(pl.col("arm") == PAIRS))
    rounds = _rounds(
        {"step": _own_steps(tables, plan, place), "link": _links(messages, tables, place)}, plan.spec.seed
    )
    size = messages.select(pl.col("bytes").mean()).item()
    beyond, level = max(floor, FLOOR), level_of_each(len(named_hosts) * len(QUANTITIES))
    rows = []
    for at, (host, hostname) in enumerate(named_hosts):
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
                ranks=tuple(sorted({rank for (_, rank), index in place.items() if index == at})),
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
    index = rows.select("launch", "round").unique().sort("launch", "round").with_row_index("at")
    rows = rows.join(index, on=["launch", "round"])
    numbers, column = np.unique(rows["rank"].to_numpy(), return_inverse=True)
    steps_ns = np.full((index.height, len(numbers)), np.nan)
    steps_ns[rows["at"].to_numpy(), column] = rows["took"].to_numpy()
    median = np.nanmedian(steps_ns, axis=1)
    ratios = np.nanmean(steps_ns / median[:, None], axis=0)
    steps_ms = np.nanmean(steps_ns, axis=0) * MS
    rounds = _Ranks(steps_ns, median, index["launch"].to_numpy(), numbers, plan.spec.seed, max(floor, FLOOR))
    least, p5, middle, p95, most = np.percentile(steps_ms, [0, 5, 50, 95, 100]).tolist()
    return RankSpread(
        world_size=plan.ranks,
        least_ms=least,
        p5_ms=p5,
        median_ms=middle,
        p95_ms=p95,
        most_ms=most,
        slow=rounds.slow(ratios),
        hosts=_hosts(tables.ranks, rounds, ratios),
    )


class _Ranks:
    """Own steps a round and rank, with their intervals where they are asked for."""

    def __init__(
        self, steps: Floats, median: Floats, launch: np.ndarray, numbers: np.ndarray, seed: int, beyond: float
    ) -> None:
        self._own, self._median, self._beyond = steps, median, beyond
        self.numbers: list[int] = numbers.tolist()
        self._rounds = Rounds({}, launch, seed=seed)
        self._level = level_of_each(len(numbers))

    def step(self, at: int) -> OwnStep | None:
        """Own step of the rank or host in column `at`."""
        median = np.where(np.isfinite(self._own[:, at]), self._median, np.nan)
        rounds = self._rounds.extend({"own": self._own[:, at], "median": median})
        step_ms, ratio = rounds.ratio("own", scale=MS), rounds.ratio(lambda m: m["own"] / m["median"])
        sure = rounds.ratio(lambda m: m["own"] / m["median"], level=self._level)
        if step_ms is None or ratio is None or sure is None:
            return None
        slow = sure.surely_above(1 + self._beyond)
        return OwnStep(rank=self.numbers[at], step_ms=step_ms, ratio=ratio, slow=slow)

    def slow(self, ratios: Floats) -> int:
        """How many are slower than the median rank by more than chance."""
        steps = (self.step(int(at)) for at in np.flatnonzero(ratios > 1 + self._beyond))
        return sum(step is not None and step.slow for step in steps)


def _hosts(files: Sequence[RankFile], rounds: _Ranks, ratios: Floats) -> tuple[HostSteps, ...]:
    """The hosts with the slowest ranks."""
    column = {rank: at for at, rank in enumerate(rounds.numbers)}
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
                slowest=tuple(step for step in map(rounds.step, slowest) if step is not None),
            )
        )
    return tuple(host_steps)
