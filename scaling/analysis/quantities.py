"""One trial's records as named quantities, one value a round, ready for formulas and resampling.

Names are `<arm>` for the step and `<arm>.<phase>` for its phases; the light probe is `probe`,
the detailed one `detailed`. All in ns, means over the steps of the round's blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from scaling.analysis.merge import BlockStamps, Merged, merge
from scaling.analysis.stats import Floats
from scaling.collect import Tables
from scaling.plan import Trial
from scaling.records import BARE_ONE, DDP_SOLO, PLAIN, PROBE, REPLAY, STEP_ARMS

PHASES = ("input", "forward", "compute", "optimizer", "host", "exposed")
"""`compute` is backward without the wait for communication, `exposed` is that wait."""

_WAIT = pl.col("sync_end_ns") - pl.col("compute_end_ns") + pl.col("earlier_wait_ns")

DURATIONS = [
    (pl.col("end_ns") - pl.col("begin_ns")).alias("step"),
    pl.col("input_ns").alias("input"),
    pl.col("forward_ns").alias("forward"),
    (pl.col("backward_ns") - _WAIT).alias("compute"),
    pl.col("optimizer_ns").alias("optimizer"),
    (
        pl.col("end_ns")
        - pl.col("begin_ns")
        - pl.col("input_ns")
        - pl.col("forward_ns")
        - pl.col("backward_ns")
        - pl.col("optimizer_ns")
    ).alias("host"),
    _WAIT.alias("exposed"),
]


DEVICE_COLUMNS = {
    "launch": pl.Int64,
    "round": pl.Int64,
    "arm": pl.String,
    "rank": pl.Int64,
    "sm_mhz": pl.Float64,
    "power_w": pl.Float64,
    "reasons": pl.Int64,
    "throttled": pl.Boolean,
}
"""What telemetry adds to blocks (scaling/analysis/clocks.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A detailed block's steps as periods, ns; times as scaling.analysis.simulate has them."""

    key: tuple[int, int]
    """(launch, round)"""
    ready: Floats  # S x R x K, launches
    compute_end: Floats  # S x R
    transfer: Floats  # S x K
    start: Floats  # S x R
    input: Floats  # S x R, durations


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecords:
    """What was recorded of one trial, per round and rank."""

    trial: Trial
    index: pl.DataFrame
    """(launch, round) of every round with a plain block, and of an own loop's baselines, in order."""
    ranks: pl.DataFrame
    """(launch, round, arm, detailed, rank, half, step, *PHASES): means over a block's steps."""
    cycles: tuple[Cycle, ...]
    merged: dict[str, dict[tuple[int, int], float]]
    """Scalars of the merged detailed blocks by name and round."""
    bucket_bytes: tuple[int, ...]
    """Reduced in a step, in the order of reduction."""
    solo: dict[tuple[int, int], dict[str, Floats]] = field(default_factory=dict)
    making: dict[str, dict[tuple[int, int], float]] = field(default_factory=dict)
    """By round: `make` and `make_cpu`, a batch in a data worker; `train_cpu`, a step in the training process.

    Empty where batches were made up.
    """
    replay: dict[tuple[int, int], Floats] = field(default_factory=dict)
    """Per round, K: each bucket's time alone."""
    gradient_bytes: int = 0
    """Of all buckets once, as replay has them; 0 where it did not run."""
    devices: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=DEVICE_COLUMNS))
    """Blocks with what their devices showed meanwhile; empty where nobody sampled."""

    @property
    def launches(self) -> np.ndarray:
        """Launch of each round."""
        return self.index["launch"].to_numpy()

    @property
    def baseline(self) -> np.ndarray:
        """Whether each round is one of an own loop's baseline, which has other arms than its loop."""
        return self.index["round"].to_numpy() < 0

    def keys(self) -> list[tuple[int, int]]:
        """(launch, round) in order."""
        return [(int(a), int(b)) for a, b in self.index.iter_rows()]

    def per_round(self, values: dict[tuple[int, int], float]) -> Floats:
        """Align scalars to the rounds; NaN where a round has none."""
        return np.array([values.get(key, np.nan) for key in self.keys()], dtype=float)

    def arm(
        self,
        arm: str,
        *,
        detailed: bool | None = None,
        ranks: set[int] | None = None,
        half: int | None = None,
    ) -> pl.DataFrame:
        """(launch, round, step, *PHASES): mean over the given ranks."""
        rows = self.ranks.filter(pl.col("arm") == arm)
        if detailed is not None:
            rows = rows.filter(pl.col("detailed") == detailed)
        if ranks is not None:
            rows = rows.filter(pl.col("rank").is_in(list(ranks)))
        if half is not None:
            rows = rows.filter(pl.col("half") == half)
        return rows.group_by("launch", "round").agg(pl.col("step", *PHASES).mean())

    def column(self, frame: pl.DataFrame, name: str) -> Floats:
        """One column of `arm()` aligned to the rounds."""
        joined = self.index.join(frame, on=["launch", "round"], how="left", maintain_order="left")
        values: Floats = joined[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        return values

    def device(self, name: str, arms: Collection[str], ranks: set[int], *, whole: bool = False) -> Floats:
        """Mean over ranks of what their devices showed in some arms; `whole`: the sum, where all ranks did."""
        each = self._shown(name, arms, ranks)
        over = each.group_by("launch", "round").agg(
            value=pl.col(name).sum() if whole else pl.col(name).mean(), ranks=pl.len()
        )
        if whole:
            over = over.filter(pl.col("ranks") == len(ranks))
        return self.per_round({(a, b): v for a, b, v, _ in over.iter_rows()})

    def clock_drop(self, before: Collection[str], after: Collection[str], ranks: set[int]) -> Floats:
        """1 - f / f_before of the SM clock between arms of a round: mean over the ranks that showed both."""
        both = self._shown("sm_mhz", before, ranks).join(
            self._shown("sm_mhz", after, ranks), on=["launch", "round", "rank"], suffix="_after"
        )
        drop = both.group_by("launch", "round").agg(
            value=(1 - pl.col("sm_mhz_after") / pl.col("sm_mhz")).mean()
        )
        return self.per_round({(a, b): v for a, b, v in drop.iter_rows()})

    def _shown(self, name: str, arms: Collection[str], ranks: set[int]) -> pl.DataFrame:
        """(launch, round, rank, name): means over a round's blocks."""
        rows = self.devices.filter(
            pl.col("arm").is_in(list(arms)) & pl.col("rank").is_in(list(ranks)) & pl.col(name).is_not_null()
        )
        return rows.group_by("launch", "round", "rank").agg(pl.col(name).mean())

    def by_rank(self, arm: str, *, detailed: bool | None = None) -> dict[str, Floats]:
        """`step` and PHASES as `arm()` has them of each rank alone: rounds x ranks, NaN where there is none."""
        n = self.trial.world_size
        rows = self.ranks.filter((pl.col("arm") == arm) & (pl.col("rank") < n))
        if detailed is not None:
            rows = rows.filter(pl.col("detailed") == detailed)
        means = rows.group_by("launch", "round", "rank").agg(pl.col("step", *PHASES).mean())
        means = means.join(self.index.with_row_index("at"), on=["launch", "round"])
        at, rank = means["at"].to_numpy(), means["rank"].to_numpy()
        found = {}
        for name in ("step", *PHASES):
            values = np.full((self.index.height, n), np.nan)
            values[at, rank] = means[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()
            found[name] = values
        return found


def read_trial(tables: Tables, trial: Trial) -> TrialRecords:
    """Everything recorded of one trial; bare_one blocks of equal batch are shared between trials."""
    n = trial.world_size
    together = (pl.col("world_size") == n) & (pl.col("arm") != BARE_ONE) & (pl.col("rank") < n)
    own = tables.steps.filter(together & pl.col("arm").is_in(STEP_ARMS))
    bare = tables.steps.filter(
        (pl.col("arm") == BARE_ONE) & (pl.col("batch") == trial.batch) & (pl.col("solo_rank") < n)
    )
    steps = pl.concat([own, bare])
    by_block = steps.group_by("launch", "round", "arm", "detailed", "rank", "block").agg(
        *[expression.mean() for expression in DURATIONS]
    )
    by_block = by_block.with_columns(
        half=pl.col("block").rank("dense").over("launch", "round", "arm", "detailed", "rank").cast(pl.Int64)
        - 1
    )
    counted = (pl.col("arm") == PLAIN) | (pl.col("round") < 0)  # below 0: a baseline of an own loop
    rounds = tables.steps.lazy().filter(together & counted).select("launch", "round").unique()
    index = rounds.sort("launch", "round").collect()
    buckets = tables.buckets.lazy().filter(pl.col("world_size") == n)
    cycles, merged, sizes = _detailed(own, buckets, n)
    return TrialRecords(
        trial=trial,
        index=index,
        ranks=by_block,
        cycles=cycles,
        merged=merged,
        bucket_bytes=sizes,
        solo=_solo(own, buckets, n),
        making=_making(tables.blocks, n),
        replay=_replay(buckets, n),
        gradient_bytes=_gradient_bytes(buckets),
        devices=_devices(tables.blocks, trial),
    )


def _devices(blocks: pl.DataFrame, trial: Trial) -> pl.DataFrame:
    """The trial's blocks, and bare_one's of its batch, as telemetry saw them."""
    if "sm_mhz" not in blocks.columns:
        return pl.DataFrame(schema=DEVICE_COLUMNS)
    n = trial.world_size
    own = (pl.col("world_size") == n) & (pl.col("arm") != BARE_ONE)
    bare = (pl.col("arm") == BARE_ONE) & (pl.col("batch") == trial.batch)
    return blocks.filter((own | bare) & (pl.col("rank") < n)).select(list(DEVICE_COLUMNS))


def _detailed(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int
) -> tuple[tuple[Cycle, ...], dict[str, dict[tuple[int, int], float]], tuple[int, ...]]:
    cycles: list[Cycle] = []
    scalars: dict[str, dict[tuple[int, int], float]] = {}
    sizes: tuple[int, ...] = ()
    for key, stamps in detailed_blocks(own, buckets, n):
        merged = merge(stamps)
        sizes = tuple(int(b) for b in stamps.bytes)
        for name, value in _scalars(stamps, merged).items():
            scalars.setdefault(name, {})[key] = value
        if len(stamps.begin) < 2:
            continue
        own_end = stamps.done.max(axis=2)[:-1]
        cycles.append(
            Cycle(
                key=key,
                ready=stamps.launch[1:] - own_end[:, :, None],
                compute_end=stamps.compute_end[1:] - own_end,
                transfer=merged.transfer[1:],
                start=own_end - own_end.max(axis=1, keepdims=True),
                input=stamps.input[1:],
            )
        )
    return tuple(cycles), scalars, sizes


def detailed_blocks(
    own: pl.DataFrame, buckets: pl.LazyFrame, n: int
) -> list[tuple[tuple[int, int], BlockStamps]]:
    """Detailed probe blocks that all ranks have whole, as arrays. `own`, `buckets`: of world size `n`."""
    found = []
    place = ["launch", "block", "step", "rank"]
    steps = own.filter((pl.col("arm") == PROBE) & pl.col("detailed")).sort(place)
    rows = (
        buckets.filter((pl.col("arm") == PROBE) & pl.col("detailed"))
        .select(*place, "seq", "bytes", "ready_ns", "launch_ns", "done_ns")
        .sort(*place, "seq")
        .collect()
    )
    row_parts = rows.partition_by("launch", "block", as_dict=True)
    for block_key, part in steps.partition_by("launch", "block", as_dict=True, maintain_order=True).items():
        block_rows = row_parts.get(block_key)
        count = part["step"].n_unique()
        if block_rows is None or part.height != count * n or part["rank"].n_unique() != n:
            continue
        width, rest = divmod(block_rows.height, count * n)
        if rest or not width:
            continue

        def grid(name: str, frame: pl.DataFrame = part, shape: tuple[int, ...] = (count, n)) -> Floats:
            return frame[name].to_numpy().astype(float).reshape(shape)

        def cube(
            name: str, frame: pl.DataFrame = block_rows, shape: tuple[int, ...] = (count, n, width)
        ) -> Floats:
            return frame[name].to_numpy().astype(float).reshape(shape)

        key = (int(part["launch"][0]), int(part["round"][0]))
        found.append(
            (
                key,
                BlockStamps(
                    begin=grid("begin_ns"),
                    end=grid("end_ns"),
                    input=grid("input_ns"),
                    forward=grid("forward_ns"),
                    backward=grid("backward_ns"),
                    optimizer=grid("optimizer_ns"),
                    compute_end=grid("compute_end_ns"),
                    sync_end=grid("sync_end_ns"),
                    ready=cube("ready_ns"),
                    launch=cube("launch_ns"),
                    done=cube("done_ns"),
                    bytes=cube("bytes")[0, 0],
                ),
            )
        )
    return found


def _scalars(stamps: BlockStamps, merged: Merged) -> dict[str, float]:
    """Block means of what only the ranks together can tell."""
    begin = (stamps.sync_end - stamps.backward).max(axis=1, keepdims=True)
    values = {
        "busy": merged.busy.mean(),
        "exposed_transfer": merged.exposed_transfer.mean(),
        "exposed_skew": merged.exposed_skew.mean(),
        "exposed_all": (stamps.sync_end - stamps.compute_end).mean(),
    }
    for k in range(stamps.launch.shape[2]):
        values[f"bucket.{k}.transfer"] = merged.transfer[:, k].mean()
        values[f"bucket.{k}.skew"] = (merged.released[:, k] - stamps.launch[:, :, k].mean(axis=1)).mean()
        if stamps.ready[:, :, k].min() > 0:
            values[f"bucket.{k}.ready"] = (stamps.ready[:, :, k] - begin).mean()
    return {name: float(value) for name, value in values.items()}


def _solo(own: pl.DataFrame, buckets: pl.LazyFrame, n: int) -> dict[tuple[int, int], dict[str, Floats]]:
    """ddp_solo blocks: per round, `ready` R x K since the step's begin, and means of phases, R each."""
    steps = own.filter((pl.col("arm") == DDP_SOLO) & pl.col("detailed"))
    rows = (
        buckets.filter((pl.col("arm") == DDP_SOLO) & (pl.col("ready_ns") > 0))
        .select("launch", "round", "rank", "block", "step", "seq", "ready_ns")
        .join(
            steps.lazy().select("launch", "rank", "block", "step", "begin_ns"),
            on=["launch", "rank", "block", "step"],
        )
        .group_by("launch", "round", "rank", "seq")
        .agg(ready=(pl.col("ready_ns") - pl.col("begin_ns")).mean())
        .sort("launch", "round", "rank", "seq")
        .collect()
    )
    phases = (
        steps.group_by("launch", "round", "rank")
        .agg(*[e.mean() for e in DURATIONS])
        .sort("launch", "round", "rank")
    )
    found: dict[tuple[int, int], dict[str, Floats]] = {}
    row_parts = rows.partition_by("launch", "round", as_dict=True)
    for key, part in phases.partition_by("launch", "round", as_dict=True).items():
        block_rows = row_parts.get(key)
        if block_rows is None or part.height != n or block_rows.height % n:
            continue
        found[(int(key[0]), int(key[1]))] = {
            "ready": block_rows["ready"].to_numpy().reshape(n, -1),
            **{name: part[name].to_numpy() for name in PHASES},
        }
    return found


def _making(blocks: pl.DataFrame, n: int) -> dict[str, dict[tuple[int, int], float]]:
    """Mean over the ranks' blocks of DDP over the group."""
    own = blocks.filter(
        (pl.col("world_size") == n) & pl.col("arm").is_in([PLAIN, PROBE]) & (pl.col("make_ns") > 0)
    )
    columns = {
        "make": pl.col("make_ns"),
        "make_cpu": pl.col("make_cpu_ns"),
        "train_cpu": pl.col("cpu_ns") / (pl.col("steps") + pl.col("lead_in")),
    }
    means = own.group_by("launch", "round").agg(**{name: column.mean() for name, column in columns.items()})
    found: dict[str, dict[tuple[int, int], float]] = {}
    for row in means.iter_rows(named=True):
        for name in columns:
            found.setdefault(name, {})[row["launch"], row["round"]] = row[name]
    return found


def _replay(buckets: pl.LazyFrame, n: int) -> dict[tuple[int, int], Floats]:
    """Replay blocks: each bucket from the latest launch to the latest done, mean of the round's repetitions."""
    times = (
        buckets.filter(pl.col("arm") == REPLAY)
        .group_by("launch", "round", "block", "step", "seq")
        .agg(time=pl.col("done_ns").max() - pl.col("launch_ns").max(), ranks=pl.len())
        .filter(pl.col("ranks") == n)
        .group_by("launch", "round", "seq")
        .agg(pl.col("time").mean())
        .sort("launch", "round", "seq")
        .collect()
    )
    return {
        (int(key[0]), int(key[1])): part["time"].to_numpy()
        for key, part in times.partition_by("launch", "round", as_dict=True).items()
    }


def _gradient_bytes(buckets: pl.LazyFrame) -> int:
    """All buckets once: what a ddp_solo step recorded, since a replay repeats whatever the arm reduced."""
    key = ["launch", "rank", "block", "step"]
    solo = buckets.filter(pl.col("arm") == DDP_SOLO).select(*key, "bytes").collect()
    return int(solo.join(solo.select(key).head(1), on=key)["bytes"].sum())
