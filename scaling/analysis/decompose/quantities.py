"""One trial's records as named quantities, one value a round, ready for formulas and resampling.

Names are `<arm>` for the step and `<arm>.<phase>` for its phases; the light probe is `probe`,
the detailed one `detailed`. All in ns, means over the steps of the round's blocks.

The collectives of a step, as all ranks have them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from scaling.analysis.network.links import bus_factor
from scaling.analysis.network.replay import Program, Replay
from scaling.analysis.statistics.resampling import units
from scaling.analysis.statistics.rounds import Floats, Rounds
from scaling.records.tables import Frame, in_memory
from scaling.settings.plan import Plan, Trial
from scaling.settings.schedule import BARE_ALL, BARE_ONE, PLAIN, PROBE

if TYPE_CHECKING:
    from scaling.analysis.decompose.imbalance import TokenRows
    from scaling.analysis.decompose.stragglers import Light


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A collective of a step, the same on every rank but for its group."""

    kind: str
    phase: str
    unit: int
    bytes: int
    """As nccl-tests counts them."""
    ranks: int
    """Ranks of its communicator."""
    axis: str
    """The mesh axis of its communicator: `shard`, `replicate` or `tensor`."""

    @property
    def moved(self) -> float:
        """Bytes that a rank's link carries: bytes x the bus factor of the kind."""
        return self.bytes * bus_factor(self.ranks, self.kind)

    @property
    def hops(self) -> int:
        """Steps of a ring."""
        return (2 if self.kind == "all_reduce" else 1) * (self.ranks - 1)


def by_kind(sent: Sequence[Sent]) -> list[tuple[int, ...]]:
    """Places of the collectives that have kind, phase and communicator in common, in the order of the first."""
    places_of_kind: dict[tuple[str, str, str], list[int]] = {}
    for place, collective in enumerate(sent):
        places_of_kind.setdefault((collective.kind, collective.phase, collective.axis), []).append(place)
    return [tuple(places) for places in places_of_kind.values()]


Key = tuple[int, int]
"""(launch, round)"""
PHASES = ("input", "forward", "compute", "optimizer", "host", "exposed")
"""Each without its waits for communication, which are `exposed`; `compute` is backward's."""
OWN_PHASES = PHASES[:-1]
"""What a rank does by itself."""
EARLIER = "earlier_wait"
"""Part of `exposed` that earlier micro-steps of accumulation waited; 0 where they do not reduce."""

WAIT = (
    pl.col("sync_end_ns") - pl.col("compute_end_ns") + pl.col("earlier_wait_ns") + pl.col("backward_wait_ns")
)
"""Waits behind and within backward."""
_BUFFERS = pl.col("buffer_wait_ns") + pl.col("forward_wait_ns")
ELSEWHERE = pl.col("input_wait_ns") + pl.col("optimizer_wait_ns") + pl.col("host_wait_ns")
"""Waits outside of forward and backward, which a loop of one's own may have."""
WAITS = WAIT + _BUFFERS + ELSEWHERE
"""All that a step waits for communication, by its own stamps."""

_STEP = pl.col("end_ns") - pl.col("begin_ns")
_BESIDE_HOST = ("input_ns", "forward_ns", "backward_ns", "optimizer_ns", "host_wait_ns")
DURATIONS = [
    _STEP.alias("step"),
    (pl.col("input_ns") - pl.col("input_wait_ns")).alias("input"),
    (pl.col("forward_ns") - _BUFFERS).alias("forward"),
    (pl.col("backward_ns") - WAIT).alias("compute"),
    (pl.col("optimizer_ns") - pl.col("optimizer_wait_ns")).alias("optimizer"),
    (_STEP - pl.sum_horizontal(_BESIDE_HOST, ignore_nulls=False)).alias("host"),
    WAITS.alias("exposed"),
    pl.col("earlier_wait_ns").alias(EARLIER),
]
COLUMNS = ("step", *PHASES, EARLIER)


MESSAGES = {"powersgd": 3}
"""Communication hook -> all-reduces of each bucket at most; other hooks have one."""
SHOWN = {
    "sm_mhz": pl.Float64,
    "power_w": pl.Float64,
    "reasons": pl.Int64,
    "throttled": pl.Boolean,
    "device": pl.String,
}
"""What telemetry adds to blocks (scaling/analysis/quality/clocks.py)."""
DEVICE_COLUMNS = {"launch": pl.Int64, "round": pl.Int64, "arm": pl.String, "rank": pl.Int64, **SHOWN}


_TRANSFERS = ("busy", "span", "least")
"""Scalars of merged blocks that tell transfers; those with a bucket's or a kind's name come beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """A detailed block's steps as periods, ns; where earlier micro-steps reduce too, one micro-step of them."""

    key: Key
    """(launch, round)"""
    replay: Replay | Program
    """Ready times are launches. They and the end of compute leave out the wait for buffers in forward."""
    input: Floats  # S x R, durations; of several micro-steps an equal part each
    step: Floats  # S x R, likewise: how long the replayed steps took
    waited: Floats  # S x R, likewise: what they waited for communication
    moving: Floats  # S x R, likewise: what of that while data moved
    per_step: int = 1
    """Cycles of one step."""


MIXED = pl.col("unseen_forwards").sum() > 0.02 * pl.col("steps").sum()
"""Whether another model trains in more than a few steps of these blocks, and its forward was not seen."""


class CallTraffic(NamedTuple):
    """What an own loop sends by calls in Python, DDP's reducer apart, and what nobody was seen to wait for."""

    bytes: int = -1
    """A rank's and step's; -1: not counted."""
    unclaimed_bytes: int = 0
    """On the rank that has most of them."""
    polled: bool = False
    """Whether a loop asked if some collective is done instead of waiting."""
    unseen_forwards: bool = False
    """Whether another model trains in the step, whose forward counts as input or host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecords:
    """What was recorded of one trial, per round and rank."""

    trial: Trial
    index: pl.DataFrame
    """(launch, round) of every round with a plain block, and of the baselines of an own loop, in order."""
    ranks: pl.DataFrame
    """(launch, round, arm, detailed, rank, half, step, *PHASES): means over a block's steps."""
    cycles: tuple[Cycle, ...]
    merged: dict[str, dict[Key, float]]
    """Scalars of the merged detailed blocks by name and round."""
    bucket_bytes: tuple[int, ...]
    """Reduced in a step, in the order of reduction."""
    sampled: bool = False
    """Whether only some rounds were to have details (Content.detailed)."""
    solo: dict[Key, dict[str, Floats]] = field(default_factory=dict)
    making: dict[str, dict[Key, float]] = field(default_factory=dict)
    """By round: `make` and `make_cpu`, a batch in a data worker; `train_cpu`, a step in the training process.

    Empty for synthetic data.
    """
    replay: dict[Key, Floats] = field(default_factory=dict)
    """By round, K: each bucket's transfer time alone, ns."""
    gradients: tuple[int, ...] = ()
    """Bytes of each bucket, of ddp_solo or of an own loop's wrapper; a communication hook may send fewer."""
    replayed: tuple[int, ...] = ()
    """Bytes of each message of a replay."""
    sent: tuple[Sent, ...] = ()
    """The collectives of a step, in the order of launch."""
    programs: Mapping[Key, Program] = field(default_factory=dict)
    """Sharded: the steps of each round's detailed block."""
    turns: Mapping[Key, Any] = field(default_factory=dict)
    """Sharded: the units' turns over a mesh of one rank, by round (decompose.sharded.Turns)."""
    light: Light | None = None
    """The ranks' own times and waits in steps without details; None where no wait was stamped."""
    named: Mapping[str, Light] = field(default_factory=dict)
    """The ranks' own times and waits in the phases that an own loop names."""
    beside: CallTraffic = field(default_factory=CallTraffic)
    """What an own loop's own calls send."""
    tokens: TokenRows | None = None
    """What an own loop told of its steps' tokens; None where it told nothing."""
    devices: Frame = field(default_factory=lambda: pl.LazyFrame(schema=DEVICE_COLUMNS))
    """Blocks with the telemetry of their devices; empty without telemetry."""

    @property
    def gradient_bytes(self) -> int:
        """Size of all buckets; 0 where nothing tells it."""
        return sum(self.gradients)

    def reductions(self, plan: Plan) -> int | None:
        """How often a step reduces each gradient: 1, unless no_sync is missing in accumulation. None: not known.

        Computed from the number of all-reduces, since a communication hook changes their bytes. A hook of an own loop
        may also send several messages for a bucket, so only one reduction or one a micro-step is believed of it.
        """
        if not self.gradients or not self.bucket_bytes:
            return None
        spec = plan.spec
        if plan.kind.followed:
            times = len(self.bucket_bytes) / len(self.gradients)
            if spec.ddp.comm_hook != "none":
                return round(times) if times in (1, spec.accumulation_steps) else None
            return max(1, round(times))
        once = MESSAGES.get(spec.ddp.comm_hook, 1) * len(self.gradients)
        return max(1, min(spec.accumulation_steps, round(len(self.bucket_bytes) / once)))

    @property
    def launches(self) -> np.ndarray:
        """Launch of each round."""
        return self.index["launch"].to_numpy()

    @property
    def arms(self) -> frozenset[str]:
        """Those that have blocks."""
        return frozenset(self.ranks["arm"])

    def in_rounds(self, values: Mapping[str, Floats], plan: Plan) -> Rounds:
        """Quantities of the trial's rounds, with the units in which these are resampled."""
        seed = plan.spec.seed
        if not plan.kind.followed:
            whole = np.isfinite(self.arm(PROBE, detailed=True)["step"]) if self.sampled else None
            return Rounds(values, self.launches, seed=seed, whole=whole)
        unit = units(values[PLAIN], self.launches)
        baseline = self.index["round"].to_numpy() < 0  # rounds apart from the loop's, with other arms
        unit = np.where(baseline, np.arange(len(unit)) + len(unit), unit)
        unit = np.unique(unit, return_inverse=True)[1]
        return Rounds(values, self.launches, seed=seed, unit=unit, part=baseline.astype(np.int64))

    def keys(self) -> list[Key]:
        """(launch, round) in order."""
        return [(int(a), int(b)) for a, b in self.index.iter_rows()]

    def without_details(self) -> TrialRecords:
        """What is left where details changed the step: how long transfers took then, and nothing of waits."""
        kept = {
            name: values
            for name, values in self.merged.items()
            if name in _TRANSFERS or name.endswith((".transfer", ".shared"))
        }
        return replace(self, cycles=(), merged=kept)

    def without_detailed_arms(self) -> TrialRecords:
        """What is left where too few rounds have details for an interval: how long transfers took in them."""
        kept = self.ranks.filter(~pl.col("detailed") & (pl.col("arm") != BARE_ALL))
        return replace(self.without_details(), ranks=kept, sampled=False, solo={}, turns={})

    def of_own_times(self, value: Callable[[Floats], float]) -> Floats:
        """A value of the ranks' own times, S x R in ns, one a round: of light steps, else of the detailed ones."""
        if self.light is None:
            return self.of_cycles(lambda cycle: value(cycle.replay.computed()))
        return self.per_round({key: value(steps) for key, steps in self.light.own_ns.items()})

    def of_cycles(self, value: Callable[[Cycle], float]) -> Floats:
        """A value of every cycle, summed over a block's micro-steps; one a round."""
        total: dict[Key, float] = {}
        for cycle in self.cycles:
            total[cycle.key] = total.get(cycle.key, 0.0) + value(cycle)
        return self.per_round(total)

    def column(self, rows: pl.DataFrame, name: str) -> Floats:
        """A column of rows (launch, round, ...), one a round at most, aligned to the rounds."""
        keys = rows.select("launch", "round").iter_rows()
        return self.per_round(dict(zip(keys, rows[name], strict=True)))

    def per_round(self, values: Mapping[Key, float]) -> Floats:
        """Align scalars to the rounds; NaN where a round has none."""
        return np.array([values.get(key, np.nan) for key in self.keys()], dtype=float)

    def arm(
        self,
        arm: str,
        *,
        detailed: bool | None = None,
        ranks: set[int] | None = None,
        half: int | None = None,
        rounds: pl.DataFrame | None = None,
    ) -> dict[str, Floats]:
        """`step`, PHASES and EARLIER, each one value a round: mean over the given ranks, NaN where it is missing.

        In bare_one, a round has the turns of a few ranks only, and some ranks have more turns than others. Each turn is
        weighted by the inverse of its rank's number of turns, so that all ranks have equal weight (D. G. Horvitz,
        D. J. Thompson, JASA 47, 1952).

        `rounds`: the index of another trial, to whose rounds the values are aligned; by default this trial's.
        """
        rows = self._blocks(arm=arm, detailed=detailed, half=half)
        if ranks is not None:
            rows = rows.filter(pl.col("rank").is_in(list(ranks)))
        mean = pl.col(COLUMNS).mean()
        if arm == BARE_ONE:
            rows = rows.with_columns(weight=1 / pl.len().over("rank"))
            mean = (pl.col(COLUMNS) * pl.col("weight")).sum() / pl.col("weight").sum()
        means = rows.group_by("launch", "round").agg(mean)
        aligned = (self.index if rounds is None else rounds).join(
            means, on=["launch", "round"], how="left", maintain_order="left"
        )
        return {name: aligned[name].cast(pl.Float64).to_numpy() for name in COLUMNS}

    def _blocks(self, **having: Any) -> pl.DataFrame:
        """The rows of `ranks` with these values; None: with any."""
        return self.ranks.filter(**{name: value for name, value in having.items() if value is not None})

    def device(self, name: str, arms: Collection[str], ranks: set[int]) -> Floats:
        """Mean over ranks of a telemetry value during some arms."""
        over = self._shown(name, arms, ranks).group_by("launch", "round").agg(pl.col(name).mean())
        return self.column(over, name)

    def boards(self, name: str, arms: Collection[str], ranks: set[int]) -> Floats:
        """Sum over the ranks' devices, a shared device counted once; only rounds with values of all ranks."""
        place = ["launch", "round"]
        device = pl.col("device").fill_null(pl.format("of rank {}", "rank"))
        shown = self._shown(name, arms, ranks)
        each = shown.group_by(*place, device).agg(pl.col(name).mean(), ranks=pl.len())
        over = each.group_by(place).agg(pl.col(name, "ranks").sum()).filter(pl.col("ranks") == len(ranks))
        return self.column(over, name)

    def clock_drop(self, before: Collection[str], after: Collection[str], ranks: set[int]) -> Floats:
        """1 - f / f_before of the SM clock between arms of a round, mean over the ranks with both values."""
        both = self._shown("sm_mhz", before, ranks).join(
            self._shown("sm_mhz", after, ranks), on=["launch", "round", "rank"], suffix="_after"
        )
        drop = both.group_by("launch", "round").agg(
            value=(1 - pl.col("sm_mhz_after") / pl.col("sm_mhz")).mean()
        )
        return self.column(drop, "value")

    def _shown(self, name: str, arms: Collection[str], ranks: set[int]) -> pl.DataFrame:
        """(launch, round, rank, name, device): means over a round's blocks."""
        rows = self.devices.filter(
            pl.col("arm").is_in(list(arms)) & pl.col("rank").is_in(list(ranks)) & pl.col(name).is_not_null()
        )
        means = rows.group_by("launch", "round", "rank").agg(pl.col(name).mean(), pl.col("device").first())
        return in_memory(means)

    def by_rank(self, arm: str, *, detailed: bool | None = None) -> dict[str, Floats]:
        """`step` and PHASES of each rank, rounds x ranks; NaN where a rank has none."""
        n = self.trial.world_size
        rows = self._blocks(arm=arm, detailed=detailed).filter(pl.col("rank") < n)
        means = rows.group_by("launch", "round", "rank").agg(pl.col("step", *PHASES).mean())
        means = means.join(self.index.with_row_index("at"), on=["launch", "round"])
        at, rank = means["at"].to_numpy(), means["rank"].to_numpy()
        grids = {}
        for name in ("step", *PHASES):
            values = np.full((self.index.height, n), np.nan)
            values[at, rank] = means[name].cast(pl.Float64).to_numpy()
            grids[name] = values
        return grids
