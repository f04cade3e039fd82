"""A run's records under one strategy, and what was recorded of each of its trials.

A trial is read once, whoever asks for it: means over blocks, and what all ranks did together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import polars as pl

from scaling.analysis.decompose.detailed import detailed_blocks, read_detailed
from scaling.analysis.decompose.imbalance import read_tokens
from scaling.analysis.decompose.own_loop import read_named, usable
from scaling.analysis.decompose.quantities import (
    DEVICE_COLUMNS,
    DURATIONS,
    MIXED,
    PHASES,
    CallTraffic,
    Key,
    Sent,
    TrialRecords,
)
from scaling.analysis.decompose.sharded import has_units, read_sharded, turns
from scaling.analysis.decompose.stragglers import queue_waits, read_light, waits_look_like_compute
from scaling.analysis.network.channel import channels
from scaling.analysis.network.curve import host_latency
from scaling.analysis.network.shared_link import served
from scaling.analysis.statistics.rounds import Floats
from scaling.records.format import DISTURBS
from scaling.records.tables import (
    ITS_PART,
    PART,
    Frame,
    Tables,
    few_rounds,
    in_memory,
    of_launches,
    round_selections,
)
from scaling.settings.plan import Plan, Trial
from scaling.settings.run import KINDS, MESSAGES
from scaling.settings.schedule import BARE_ONE, DDP_SOLO, PAIRS, PLAIN, PROBE, REPLAY, STEP_ARMS, arms_of

_MESSAGES = [KINDS.index(name) for name in MESSAGES]
"""Sends and receives of one rank to another, of which no collective is made."""
OWN_KINDS = 3
"""Kinds of blocks in a round of an own loop: plain, with phase stamps, and with phase stamps and buckets."""
ROUND_ROWS = 400_000
"""Rows of steps of which the means of blocks are computed at a time, or those of one round."""


class RunRecords:
    """The records of a run under one strategy. `plan`: of that strategy alone."""

    def __init__(self, tables: Tables, plan: Plan, *, usable: bool = False) -> None:
        """`usable`: whether blocks that a decomposition cannot use are left out already."""
        self.tables, self.plan = tables, plan
        self._is_usable = usable or not plan.kind.followed
        self._trials: dict[tuple[int, frozenset[int]], TrialRecords] = {}

    @cached_property
    def counted(self) -> dict[int, frozenset[int]]:
        """The launches that count for each world size."""
        return {t.world_size: counted(self.tables, self.plan, t) for t in self.plan.trials}

    @property
    def usable(self) -> RunRecords:
        """What a decomposition is made of: all records, but in an own loop those of whole, evenly spread blocks."""
        return self if self._is_usable else self._thinned  # no cached self: tables go with their last reader

    @cached_property
    def _thinned(self) -> RunRecords:
        return RunRecords(usable(self.tables, self.plan), self.plan, usable=True)

    def within(self, n: int) -> Tables:
        """The tables of the launches that count for a world size."""
        return of_launches(self.tables, self.counted[n])

    def trial(self, n: int, *, launches_of: int | None = None) -> TrialRecords:
        """What was recorded at a world size, from the launches that count for it, or for another one."""
        launches = self.counted[n if launches_of is None else launches_of]
        if (n, launches) not in self._trials:
            (trial,) = (t for t in self.plan.trials if t.world_size == n)
            self._trials[n, launches] = _read(of_launches(self.tables, launches), self.plan, trial)
        return self._trials[n, launches]


def counted(tables: Tables, plan: Plan, trial: Trial) -> frozenset[int]:
    """Launches that a trial's numbers come from; empty if it was not measured at all.

    Arms are compared within a launch, so that differences between launches (time of day, hosts, process start) do not
    appear as a loss. A trial is therefore read from the launches that measured it completely. If there is none, it is
    read from launches that were cut off but have complete rounds; and if no round is complete, from the launch with
    most blocks.
    """
    n = trial.world_size
    facts = ["launch", "round", "arm", "detailed", "batch"]
    here = (pl.col("world_size") == n) & ~pl.col("arm").is_in([BARE_ONE, PAIRS]) & (pl.col("rank") < n)
    blocks = in_memory(tables.blocks.filter(here).group_by(facts).agg(ranks=pl.len()))
    blocks = blocks.filter((pl.col("arm") == PLAIN).any().over("launch"))
    measured = blocks["launch"].unique().to_list()
    whole = [launch for launch in measured if ended_whole(tables, launch)]
    if whole:
        return frozenset(whole)
    if plan.kind.followed:
        rounds, kinds = blocks.filter(pl.col("round") >= 0), OWN_KINDS  # its baseline has rounds of its own
    else:
        batches = {t.batch for t in (trial, *plan.baseline((trial,)))}
        of_batches = (pl.col("arm") == BARE_ONE) & pl.col("batch").is_in(list(batches))
        alone = in_memory(tables.blocks.filter(of_batches).select(facts).unique())
        rounds = pl.concat([blocks.select(facts), alone])
        kinds = len(set(arms_of(n, plan.content))) + len(batches)
    arms_run = rounds.group_by("launch", "round").agg(arms=pl.struct("arm", "detailed", "batch").n_unique())
    full = set(arms_run.filter(pl.col("arms") == kinds)["launch"]) & set(measured)
    most = blocks.group_by("launch").agg(pl.col("ranks").sum()).sort("ranks", "launch")["launch"].tail(1)
    return frozenset(full or most)


def ended_whole(tables: Tables, launch: int) -> bool:
    """Whether every rank of a launch wrote its records to the end; an own loop may also end with an exception."""
    files = {rank.rank: rank for rank in tables.ranks if rank.launch == launch}
    world = max((file.world for file in files.values()), default=0)
    return bool(files) and all(
        rank in files and (files[rank].ended or files[rank].state is not None) and not files[rank].cut_off
        for rank in range(max(world, len(files)))
    )


def _read(tables: Tables, plan: Plan, trial: Trial) -> TrialRecords:
    """All records of one trial, from its first sub-group; bare_one blocks are shared by trials of equal batch."""
    n = trial.world_size
    first = (pl.col("world_size") == n) & (pl.col("rank") < n)
    together = first & (pl.col("arm") != BARE_ONE)
    steps = tables.steps.filter(together & pl.col("arm").is_in(STEP_ARMS))
    if DISTURBS in withheld(tables, n) or (_unproved(tables, plan, n) and waits_look_like_compute(steps, n)):
        steps = queue_waits(steps)
    bare = tables.steps.filter(
        (pl.col("arm") == BARE_ONE) & (pl.col("batch") == trial.batch) & (pl.col("solo_rank") < n)
    )
    counted = (pl.col("arm") == PLAIN) | (pl.col("round") < 0)  # below 0: a baseline of an own loop
    rounds = in_memory(tables.steps.filter(together & counted).select("launch", "round").unique())
    index = rounds.sort("launch", "round")
    buckets = tables.buckets.lazy().filter(first & ~pl.col("kind").is_in(_MESSAGES))
    by_strategy: dict[str, Any]
    if has_units(buckets):
        stamped = in_memory(steps)
        steps = stamped.lazy()
        shards = read_sharded(stamped, buckets, plan.spec.parallel.mesh(n), served(tables, plan))
        cycles, merged, sent = shards.cycles, shards.merged, shards.sent
        by_strategy = {"programs": shards.programs, "turns": turns(stamped, buckets, n, DDP_SOLO)}
    else:
        channel, host_ns = channels(tables, plan), _host_ns(tables, n)
        stamps = detailed_blocks(steps, buckets, tables.blocks, n, channel, host_ns)
        cycles, merged, sizes = read_detailed(stamps)
        sent = tuple(
            Sent(kind="all_reduce", phase="backward", unit=k, bytes=size, ranks=n, axis="replicate")
            for k, size in enumerate(sizes)
        )
        newest = max(tables.ranks, key=lambda rank: rank.launch, default=None)
        of_wrapper = newest.buckets if newest else ()  # of an own loop's DDP; empty in other runs
        gradients = _messages(buckets, DDP_SOLO) or of_wrapper
        by_strategy = {"solo": _solo(steps, buckets, n), "gradients": gradients}
    return TrialRecords(
        trial=trial,
        index=index,
        ranks=_by_block([steps, bare]),
        cycles=cycles,
        merged=merged,
        bucket_bytes=tuple(collective.bytes for collective in sent),
        sampled=any(file.detailed for file in tables.ranks),
        sent=sent,
        making=_making(tables.blocks.filter(first)),
        replay=_replay(buckets, n),
        replayed=_messages(buckets, REPLAY),
        light=read_light(steps, n),
        named=read_named(tables, n),
        beside=_beside(tables.blocks, n),
        tokens=read_tokens(steps, n) if n > 1 else None,
        devices=_devices(tables.blocks, trial),
        **by_strategy,
    )


def _beside(blocks: Frame, n: int) -> CallTraffic:
    """What Python was seen to send in the light steps of an own loop."""
    counted = (pl.col("world_size") == n) & (pl.col("arm") == PROBE) & ~pl.col("detailed")
    means = pl.col("sent_bytes", "unclaimed_bytes").mean(), pl.col("polled").sum(), MIXED.alias("mixed")
    each = in_memory(blocks.filter(counted & (pl.col("sent_bytes") >= 0)).group_by("rank").agg(*means))
    if each.is_empty():
        return CallTraffic()
    sent, unclaimed, polled, mixed = each.drop("rank").max().row(0)
    return CallTraffic(math.ceil(sent), math.ceil(unclaimed), polled > 0, mixed)


def withheld(tables: Tables, n: int) -> tuple[str, ...]:
    """Why ranks recorded no collectives though they were to (BlockRecord.withheld); empty where they did."""
    why = tables.blocks.filter((pl.col("world_size") == n) & (pl.col("withheld") != "")).select("withheld")
    return tuple(sorted(in_memory(why.unique())["withheld"]))


def _unproved(tables: Tables, plan: Plan, n: int) -> bool:
    """Whether nobody looked if the collectives of a device share a work queue with its kernels: none was stamped."""
    if n == 1 or not plan.spec.topology.on_device:
        return False
    stamped = tables.buckets.filter((pl.col("world_size") == n) & (pl.col("arm") == PROBE)).head(1)
    return in_memory(stamped).is_empty()


def _host_ns(tables: Tables, n: int) -> float:
    """How long the host takes to bring a collective to an idle device; 0 where the sweep does not tell."""
    mean_ns = host_latency(tables.fabric, n)["time_ns"].mean()
    return max(0.0, float(mean_ns)) if isinstance(mean_ns, float) else 0.0


def _devices(blocks: Frame, trial: Trial) -> Frame:
    """Telemetry of the trial's blocks and of bare_one blocks with its batch."""
    if "sm_mhz" not in blocks.collect_schema():
        return pl.LazyFrame(schema=DEVICE_COLUMNS)
    n = trial.world_size
    together = (pl.col("world_size") == n) & (pl.col("arm") != BARE_ONE)
    bare = (pl.col("arm") == BARE_ONE) & (pl.col("batch") == trial.batch)
    return blocks.filter((together | bare) & (pl.col("rank") < n)).select(list(DEVICE_COLUMNS))


def _by_block(steps: Sequence[Frame]) -> pl.DataFrame:
    """Means over the steps of each block and rank, in order: what is summed over them keeps its last digit."""
    kind = ("launch", "round", "arm", "detailed", "rank")
    means = [expression.mean() for expression in DURATIONS]
    half = pl.col("block").rank("dense").over(kind).cast(pl.Int64) - 1
    return pl.concat(
        [
            rows.group_by(*kind, "block").agg(means).sort(*kind, "block").with_columns(half=half)
            for frame in steps
            for rows in _few_blocks(frame)
        ]
    )


def _few_blocks(steps: Frame) -> Iterator[pl.DataFrame]:
    """The rows of a few whole rounds at a time; at least one frame."""
    names = {name for expression in DURATIONS for name in expression.meta.root_names()}
    needed = steps.select("launch", "round", "arm", "detailed", "rank", "block", *sorted(names), ITS_PART)
    if PART not in needed.collect_schema():
        yield in_memory(needed)
        return
    yield in_memory(needed.clear())
    yield from (in_memory(needed.filter(chosen)) for chosen in round_selections(needed, ROUND_ROWS))


def _solo(step_rows: Frame, buckets: Frame, n: int) -> dict[Key, dict[str, Floats]]:
    """ddp_solo blocks: per round, `ready` R x K since the step's begin, and means of phases, R each.

    Ready times are clamped to the end of backward's compute, where that is known, which DDP's own stamp can exceed.
    """
    steps = step_rows.filter((pl.col("arm") == DDP_SOLO) & pl.col("detailed"))
    sent = buckets.filter((pl.col("arm") == DDP_SOLO) & (pl.col("ready_ns") > 0))
    sent = sent.select("launch", "round", "rank", "block", "step", "seq", "ready_ns", ITS_PART)
    place, rounds = ["launch", "rank", "block", "step"], ("launch", "round")
    by_round: dict[Key, dict[str, Floats]] = {}
    for mine, rows in few_rounds(steps, sent):
        ready = (
            mine.select(*place, "begin_ns", "compute_end_ns")
            .join(rows, on=place)
            .with_columns(latest=pl.when(pl.col("compute_end_ns") > 0).then("compute_end_ns"))
            .group_by(*rounds, "rank", "seq")
            .agg(ready=(pl.min_horizontal("ready_ns", "latest") - pl.col("begin_ns")).mean())
            .sort(*rounds, "rank", "seq")
        )
        phases = mine.group_by(*rounds, "rank").agg(e.mean() for e in DURATIONS).sort(*rounds, "rank")
        row_parts = ready.partition_by(*rounds, as_dict=True)
        for key, part in phases.partition_by(*rounds, as_dict=True).items():
            block_rows = row_parts.get(key)
            if block_rows is None or part.height != n or block_rows.height % n:
                continue
            by_round[(int(key[0]), int(key[1]))] = {
                "ready": block_rows["ready"].to_numpy().reshape(n, -1),
                **{name: part[name].to_numpy() for name in PHASES},
            }
    return by_round


def _making(blocks: Frame) -> dict[str, dict[Key, float]]:
    """Mean over the ranks' plain and probe blocks; `blocks`: of one world size."""
    timed = blocks.filter(pl.col("arm").is_in([PLAIN, PROBE]) & (pl.col("make_ns") > 0))
    columns = {
        "make": pl.col("make_ns"),
        "make_cpu": pl.col("make_cpu_ns"),
        "train_cpu": pl.col("cpu_ns") / (pl.col("steps") + pl.col("lead_in")),
    }
    means = timed.group_by("launch", "round").agg(**{name: column.mean() for name, column in columns.items()})
    each = in_memory(means)
    keys = each.select("launch", "round").rows()
    return {name: dict(zip(keys, each[name], strict=True)) for name in columns} if keys else {}


def _replay(buckets: Frame, n: int) -> dict[Key, Floats]:
    """Replay blocks: each bucket from the latest launch to the latest done, mean of the round's repetitions."""
    each = in_memory(
        buckets.filter(pl.col("arm") == REPLAY)
        .group_by("launch", "round", "block", "step", "seq")
        .agg(time=pl.col("done_ns").max() - pl.col("launch_ns").max(), ranks=pl.len())
        .filter(pl.col("ranks") == n)
    )
    times = each.group_by("launch", "round", "seq").agg(pl.col("time").mean()).sort("launch", "round", "seq")
    return {
        (int(key[0]), int(key[1])): part["time"].to_numpy()
        for key, part in times.partition_by("launch", "round", as_dict=True).items()
    }


def _messages(buckets: Frame, arm: str) -> tuple[int, ...]:
    """Bytes of what one step of an arm recorded, in the order of reduction; empty where it did not run."""
    rows = buckets.filter(pl.col("arm") == arm)
    first = in_memory(rows.select("launch", "rank", "block", "step").head(1))
    if first.is_empty():
        return ()
    (place,) = first.rows(named=True)
    step = rows.filter(*(pl.col(name) == at for name, at in place.items()))
    return tuple(in_memory(step.select("seq", "bytes")).sort("seq")["bytes"].to_list())
