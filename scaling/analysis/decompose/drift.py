"""Lasting changes of level: since when steps take longer or shorter, on which ranks, and why where devices tell. Pure.

Each round gives a value of the step, of the ranks' waits, and of what each rank does by itself. Changes are looked for
in all of them at once by a self-normalised statistic (X. Shao, X. Zhang, "Testing for Change Points in Time Series",
JASA 105(491), 2010), which needs no estimate of how much a round is like the one before it. It is taken of the values'
order, so that a few slow rounds count no more than others. Both sides of a change are looked at in turn.

What has changed is told by the means on both sides: ranks by their own times, else the waits, else the step alone. A
change that may be below 1 % of the step is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from scaling.analysis.decompose.quantities import OWN_PHASES, TrialRecords
from scaling.analysis.decompose.stragglers import FLOOR, most_grown
from scaling.analysis.quality.untracked_traffic import hides_waits
from scaling.analysis.results import Drift, Measured
from scaling.analysis.statistics.resampling import units
from scaling.analysis.statistics.rounds import MS, Floats, among, student
from scaling.hardware.nvml import REASONS
from scaling.records.tables import Tables, in_memory
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN, PROBE

ROUNDS_MIN, SIDE_MIN = 30, 5
"""Rounds in which a change can be told, and those on either side of it; a side has a twentieth of them at least."""
CHANCE, FEW = 0.01, 40
"""Probability that a long steady run is split, whatever the number of ranks. With N independent rounds the statistic
has to be 1 + FEW / N times as large: by trial, for less than 1 % of short runs at autocorrelations up to 0.8."""
FAR = 5 / 0.6745
"""Rounds are far out beyond so many median distances from their side's median: five standard deviations of a normal."""
CAUSES, OFTEN = {name: bit for name, bit in REASONS.items() if name != "idle"}, 0.5
"""Reasons of a device that are named where their share of the rounds is so much larger on the slower side."""


def drifts(records: TrialRecords, tables: Tables, plan: Plan) -> tuple[Drift, ...]:
    """In order of time. `tables`: of the launches of the records."""
    if records.index.height < ROUNDS_MIN:
        return ()
    every = records.by_rank(PROBE, detailed=None if records.light is None else False)
    own_ns = np.sum([every[phase] for phase in OWN_PHASES], axis=0)
    seen = [] if hides_waits(records) else [every["exposed"].mean(axis=1), *own_ns.T, *_apart(own_ns).T]
    series = np.column_stack([records.arm(PLAIN)["step"], *seen])
    whole = np.isfinite(series).all(axis=1)
    series, rounds = series[whole], records.index.filter(pl.Series(whole))
    keys, never = records.keys(), np.zeros((1, own_ns.shape[1]))
    named_ns = {
        name: np.array([light.own_ns.get(key, never).mean(axis=0) for key in keys])
        for name, light in records.named.items()
    }
    listed, places = [], changes(series)
    for first, at, last in zip([0, *places], places, [*places[1:], len(series)], strict=False):
        here, split = series[first:last], at - first
        columns = changed(here, split)
        if not columns:
            continue
        old, new = levels_of(here[:, 0], split)
        before, after = levels_of(here[:, columns].mean(axis=1), split)
        ranks, more = [column - 2 for column in columns if column > 1], after - before
        if ranks and (others := sorted({*range(2, 2 + own_ns.shape[1])} - {*columns})):
            apart = levels_of(here[:, columns].mean(axis=1) - here[:, others].mean(axis=1), split)
            more = apart[1] - apart[0]
        phase = "exposed" if columns == [1] else "step"
        if ranks:
            grown, named = (
                {name: _more(ns[whole][first:last, ranks], split) * more.value for name, ns in grids.items()}
                for grids in ({name: every[name] for name in OWN_PHASES}, named_ns)
            )
            phase = most_grown(grown, named, mixed=records.beside.unseen_forwards)
        listed.append(
            Drift(
                ranks=tuple(ranks),
                phase=phase,
                **_since(tables, plan, *rounds.row(at)),
                before_ms=before * MS,
                after_ms=after * MS,
                more_ms=more * MS,
                step_more_ms=(new - old) * MS,
                **_devices(records, rounds[first:last], split, ranks, longer=more.value > 0),
            )
        )
    return tuple(listed)


def _more(values: Floats, at: int) -> float:
    """By how much the mean of rounds x ranks is larger from a round on."""
    return float(values[at:].mean() - values[:at].mean())


def _apart(own_ns: Floats) -> Floats:
    """Each rank's own time less the mean of the others', in which what they have in common cancels; rounds x ranks."""
    others: Floats = (own_ns.sum(axis=1, keepdims=True) - own_ns) / max(1, own_ns.shape[1] - 1)
    return own_ns - others


def changed(series: Floats, at: int) -> list[int]:
    """The columns that surely change at a round by more than FLOOR of the step.

    Ranks that change by less than half as much as the one that changes most are left out: to wait longer slows them.

    `series`: the step, the waits, each rank's own time, and that apart from the others'. A rank has changed if its own
    time surely has, or if it surely has apart from the others and it is not they who have. Ranks come before the waits,
    which follow from them, and the waits before the step. Intervals hold for all columns at once.
    """
    levels = [levels_of(column, at) for column in series.T]
    bar, ranks = FLOOR * levels[0][0].value, (len(levels) - 2) // 2
    mores = [after - before for before, after in levels]
    sure = [among(more, len(mores)).differs_from(0, by=bar) for more in mores]
    late = [
        column
        for column, apart in zip(range(2, 2 + ranks), range(2 + ranks, len(mores)), strict=True)
        if sure[column] or (sure[apart] and mores[column].value / mores[apart].value > 1 / 2)
    ]
    most = max((mores[column].value for column in late), key=abs, default=0.0)
    one_way = [column for column in late if mores[column].value / most > 1 / 2]
    return one_way or [column for column in (1, 0) if any(sure[column : column + 1])][:1]


def changes(series: Floats, before: int = 0) -> list[int]:
    """The rounds with which new levels begin, in order, counted from the first of `before` rounds more."""
    rounds, many = series.shape
    if rounds < ROUNDS_MIN:
        return []
    edge = max(SIDE_MIN, rounds // 20)
    order = np.column_stack([np.unique(column, return_inverse=True)[1] for column in series.T])
    statistic = split_statistic(order.astype(float))[edge - 1 : rounds - edge].max(axis=0)
    values = order[:, statistic.argmax()]
    sums, count = np.cumsum(values - values.mean())[:-1], np.arange(1, rounds)
    at = edge + int((sums**2 / count / (rounds - count))[edge - 1 : rounds - edge].argmax())  # least squares
    if many * chance(float(statistic.max()) / (1 + FEW / _independent(values, at))) > CHANCE:
        return []
    return [*changes(series[:at], before), before + at, *changes(series[at:], before + at)]


def _independent(values: NDArray[np.int64], at: int) -> float:
    """How many rounds tell as much as these, by their lag-1 autocorrelation around the levels of both sides.

    n (1 - r) / (1 + r), as of a first-order autoregression, with r less its bias (F. H. C. Marriott, J. A. Pope,
    Biometrika 41, 1954), once for each level.
    """
    n = len(values)
    away = values - np.where(np.arange(n) >= at, values[at:].mean(), values[:at].mean())
    follows = float(away[1:] @ away[:-1]) / max(float(away @ away), 1e-9)
    follows = min(follows + (2 + 4 * follows) / n, 1 - 1 / n)
    return n * (1 - follows) / (1 + follows)


def split_statistic(series: Floats) -> Floats:
    """Shao and Zhang's statistic of a split behind each round but the last, rounds - 1 x series.

    The squared sum of what the rounds before a split are away from the mean, over the same sums within both sides. It
    is 0 where a series does not vary.
    """
    away, count = series - series.mean(axis=0), np.arange(1.0, len(series) + 1)[:, None]

    def within(sums: Floats) -> Floats:
        lines = sums / count
        squares = (np.cumsum(part, axis=0) for part in (sums**2, sums * count, count**2))
        whole, crossed, straight = squares
        inside: Floats = whole - 2 * lines * crossed + lines**2 * straight
        return np.maximum(inside, 0.0)

    sums = np.cumsum(away, axis=0)
    both = within(sums)[:-1] + within(np.cumsum(away[::-1], axis=0))[::-1][1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(sums[:-1] ** 2 * len(series) / both)


def chance(statistic: float) -> float:
    """Probability of a split's statistic so large in a series without a change; their table 1, continued to smaller."""
    return min(1.0, math.exp(2.2 - 0.8 * math.sqrt(statistic)))


def levels_of(values: Floats, at: int) -> tuple[Measured, Measured]:
    """The means before and from a round on. Rounds that are alike are averaged first (own_loop.units)."""
    side = (np.arange(len(values)) >= at).astype(np.int64)
    values = np.concatenate([_within(part) for part in np.split(values, [at])])
    unit = units(values - np.where(side, values[at:].mean(), values[:at].mean()), side)
    means = np.bincount(unit, values) / np.bincount(unit)
    return _mean(values[:at], means[: unit[at]]), _mean(values[at:], means[unit[at] :])


def _within(values: Floats) -> Floats:
    """Values without what is far out: those of a pause of the machine are moved to the limit (winsorised)."""
    middle = np.median(values)
    limit = FAR * float(np.median(np.abs(values - middle)))
    return np.clip(values, middle - limit, middle + limit) if limit else values


def _mean(values: Floats, means: Floats) -> Measured:
    n = len(means)
    half = student(n - 1) * float(means.std(ddof=1)) / n**0.5 if n > 1 else None
    return Measured.around(float(values.mean()), half, n)


def _since(tables: Tables, plan: Plan, launch: int, slot: int) -> dict[str, Any]:
    """When a round began, by rank 0: its step in an own loop, since the launch's first round, and by the calendar."""
    loop = tables.blocks.filter((pl.col("launch") == launch) & (pl.col("rank") == 0) & (pl.col("round") >= 0))
    began = dict(in_memory(loop.group_by("round").agg(pl.col("host_begin_ns").min())).iter_rows())
    (file,) = (file for file in tables.ranks if (file.launch, file.rank) == (launch, 0))
    started_ns, measure = file.process_unix_ns - file.process_ns, plan.spec.measure
    step = max(0, file.steps_before) + measure.warmup_max + slot * measure.steps
    return {
        "launch": launch,
        "since_step": step if plan.kind.followed else None,
        "since_s": (began[slot] - min(began.values())) / 1e9,
        "since_unix_s": (started_ns + began[slot]) / 1e9 if file.process_ns else None,
    }


def _devices(
    records: TrialRecords, rounds: pl.DataFrame, at: int, ranks: Sequence[int], *, longer: bool
) -> dict[str, Any]:
    """What the ranks' devices, or all, tell on one side of a change more often than on the other; and their clocks."""
    side = rounds.with_row_index("at").select("launch", "round", after=pl.col("at") >= at)
    of_ranks = pl.col("rank").is_in(ranks or list(range(records.trial.world_size)))
    shown = in_memory(records.devices.filter(of_ranks & pl.col("arm").is_in([PLAIN, PROBE])))
    shown = shown.join(side, on=["launch", "round"])
    sides = [shown.filter(pl.col("after") == after) for after in (False, True)]
    mhz = [
        Measured(float(x.to_numpy().mean()), n=len(x)) if len(x := each["sm_mhz"].drop_nulls()) else None
        for each in sides
    ]
    fast, slow = ([each["reasons"].drop_nulls().to_numpy() for each in sides])[:: 1 if longer else -1]
    reasons = []
    if len(fast) and len(slow):
        reasons = [
            n for n, bit in CAUSES.items() if np.mean(slow & bit > 0) - np.mean(fast & bit > 0) > OFTEN
        ]
    return {"reasons": tuple(reasons), "sm_mhz_before": mhz[0], "sm_mhz_after": mhz[1]}
