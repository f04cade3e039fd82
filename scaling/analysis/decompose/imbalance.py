"""What part of the ranks' lateness their tokens explain: batches of unequal work, not slow machines.

A rank's own time in a step is taken as

    own = a (of the rank) + c (of the step) + b x tokens + d x squared lengths, where these are told

and b and d, the time that a token and a squared one take, are fitted by least squares over the steps with phase stamps.
What unequal tokens cost is a counterfactual: the step with every rank at the mean of the step's tokens. Late ranks are
looked for in these steps, so that a rank with more to do is not taken for a slow one.

Where each rank always has the same number there is no telling whether a late rank is slow or has more to do: b is None.

Tokens and times are taken less their mean over the ranks of the same step, and then less each rank's mean over the
round. What all ranks share (drift, a longer batch for everybody) and what a rank always has (a slow machine) is thereby
left out, and what remains of the times is compared with what remains of the tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import DURATIONS, OWN_PHASES, Cycle, Key, TrialRecords
from scaling.analysis.decompose.stragglers import STEP, Late, grids_of, late_ranks, latest
from scaling.analysis.results import Measured, TokenBalance
from scaling.analysis.statistics.rounds import MS, Floats, Means, Rounds, student
from scaling.records.tables import ITS_PART, Frame, few_rounds
from scaling.settings.schedule import PLAIN, PROBE

_OWN = [duration for duration in DURATIONS if duration.meta.output_name() in OWN_PHASES]
XX, MEAN, MOST, COUNT = "tokens.xx", "tokens.mean", "tokens.most", "tokens.count"
PLACE = ["launch", "round"]


def with_phase(phase: str) -> str:
    """Name of the sum of products of tokens and a phase's time."""
    return f"tokens.x.{phase}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """The tokens of a trial's steps with phase stamps, in blocks in which every rank tells all of them."""

    sums: Mapping[str, Mapping[Key, float]]
    """By name and (launch, round).

    XX: of squares; `with_phase`: of products, ns; COUNT: how many; MEAN: tokens of a rank and step; MOST: those of the
    rank that has most of them in its step, mean over the steps.
    """
    by_rank: pl.DataFrame
    """(launch, round, rank, tokens): means over a rank's steps."""
    detailed: Mapping[Key, Floats]
    """S x R: the steps of each round's detailed block."""
    light: Mapping[Key, Floats]
    """S x R: those of its block without details."""
    shares: tuple[float, float]
    """A token's part of a mean token's time, and a squared one's. Tokens stand for their work, with the same mean."""


def read_tokens(step_rows: Frame, n: int) -> TokenRows | None:
    """None where no step tells its tokens. `step_rows`: the steps of `n` ranks together."""
    if "tokens" not in step_rows.collect_schema().names():
        return None
    told = step_rows.filter((pl.col("arm") == PROBE) & pl.col("tokens").is_not_null()).select(
        *PLACE, "block", "step", "rank", "detailed", "tokens", "squared", *_OWN, ITS_PART
    )
    shares = _shares(told, n)
    work = shares[0] * pl.col("tokens") + shares[1] * pl.col("squared")
    told = told.with_columns(tokens=work, counted="tokens")
    sums: dict[str, dict[Key, float]] = {}
    ranks: list[pl.DataFrame] = []
    grids: dict[bool, dict[Key, Floats]] = {True: {}, False: {}}
    for steps, _ in few_rounds(told, told.clear()):
        whole = _whole(steps, n)
        if whole.is_empty():
            continue
        for row in _sums(whole).iter_rows(named=True):
            key = (row.pop("launch"), row.pop("round"))
            for name, value in row.items():
                sums.setdefault(name, {})[key] = value
        ranks.append(whole.group_by(*PLACE, "rank").agg(pl.col("tokens").mean()))
        for detailed, table in grids.items():
            rows = whole.filter(pl.col("detailed") == detailed)
            table |= {key: grid["tokens"] for key, grid in grids_of(rows, n, {"tokens": pl.col("tokens")})}
    if not ranks:
        return None
    return TokenRows(
        sums=sums, by_rank=pl.concat(ranks), detailed=grids[True], light=grids[False], shares=shares
    )


def _sums(steps: pl.DataFrame) -> pl.DataFrame:
    """`TokenRows.sums`, a row a round."""
    most = pl.col("tokens").max().over("launch", "block", "step")
    apart = _apart(steps.with_columns(most=most), "tokens", *OWN_PHASES)
    products = {
        with_phase(phase): (pl.col("tokens") * pl.col(phase)).sum().cast(pl.Float64) for phase in OWN_PHASES
    }
    return apart.group_by(*PLACE).agg(
        (pl.col("tokens") ** 2).sum().alias(XX),
        pl.len().cast(pl.Float64).alias(COUNT),
        pl.col("counted").mean().alias(MEAN),
        pl.col("most").mean().alias(MOST),
        **products,
    )


def _whole(steps: pl.DataFrame, n: int) -> pl.DataFrame:
    """The steps that all ranks recorded."""
    return steps.filter(pl.len().over("launch", "block", "step") == n)


def _apart(steps: pl.DataFrame, *names: str) -> pl.DataFrame:
    """Columns less their mean over the ranks of a step, and then less each rank's mean over the round."""
    for over in (("launch", "block", "step"), (*PLACE, "rank")):
        values = pl.col(names).cast(pl.Float64)
        steps = steps.with_columns(values - values.mean().over(*over))
    return steps


def _shares(told: Frame, n: int) -> tuple[float, float]:
    """`TokenRows.shares`, by least squares over tokens and squares together; (1, 0): squares have no sure effect.

    The error of a squared token's time is the jackknife's over rounds.
    """
    rows = [np.zeros((0, 7))]
    x, y, t = pl.col("tokens"), pl.col("squared"), pl.col("took")
    for steps, _ in few_rounds(told, told.clear()):
        took = sum((pl.col(phase) for phase in OWN_PHASES), pl.lit(0))
        whole = _whole(steps, n).with_columns(took=took, mean="tokens", mean_squared="squared")
        products = {
            f"{k}": (a * b).sum() for k, (a, b) in enumerate(((x, x), (x, y), (y, y), (x, t), (y, t)))
        }
        sums = _apart(whole, "tokens", "squared", "took").group_by(*PLACE, maintain_order=True)
        of_rounds = sums.agg(**products, mean=pl.col("mean").sum(), mean_squared=pl.col("mean_squared").sum())
        rows.append(of_rounds.drop(*PLACE).to_numpy())
    rounds = np.concatenate(rows)
    total, count = rounds.sum(axis=0), len(rounds)
    if count < SQUARE_ROUNDS or not total[6] or total[1] ** 2 > COLLINEAR * total[0] * total[2]:
        return 1.0, 0.0

    def fitted(xx: Floats, xy: Floats, yy: Floats, xt: Floats, yt: Floats, *_: Floats) -> Floats:
        return np.array([xt * yy - yt * xy, yt * xx - xt * xy]) / (xx * yy - xy**2)

    token, squared = fitted(*total)
    without = fitted(*(total - rounds).T)[1]
    error = float(np.sqrt((count - 1) / count * ((without - without.mean()) ** 2).sum()))
    whole_token = token + squared * total[6] / total[5]
    if squared <= student(count - 1, SURE) * error or whole_token <= 0:
        return 1.0, 0.0
    return float(token / whole_token), float(squared / whole_token)


SQUARE_ROUNDS, COLLINEAR, SURE = 4, 0.9999, 0.999
"""Rounds from which on squares are looked at; a squared correlation with tokens beyond which they are the same; the
level at which their effect has to be above 0."""
VARIES = 0.01
"""Tokens that differ by a smaller fraction of their mean count as equal."""
US = 1e-3
"""From ns to us."""
EVENED = "evened"
"""What a step would be shorter by with every rank at the mean of its tokens, ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """The time that a token takes, where that is surely above 0."""

    per_token_ns: Measured
    by_phase_ns: Mapping[str, float]
    """Its parts."""

    def evened(self, records: TrialRecords, per_token_ns: float | None = None) -> TrialRecords:
        """The records with every rank's own times as if it had the mean of its step's tokens.

        `per_token_ns`: with another time a token than the most likely one.
        """
        tokens = records.tokens
        assert tokens is not None
        slope = self.per_token_ns.value if per_token_ns is None else per_token_ns
        return replace(
            records,
            cycles=tuple(_evened(cycle, tokens, slope) for cycle in records.cycles),
            light=records.light
            and records.light.changed(lambda key, ns: ns - _more(ns, tokens.light.get(key), slope)),
        )

    def explained_ns(self, records: TrialRecords, rank: int, typical: Collection[int]) -> dict[str, float]:
        """By phase: how much longer a rank's tokens make it than those of the typical ranks."""
        assert records.tokens is not None
        means = _of_ranks(records.tokens)
        more = means[rank] - float(np.mean([means[other] for other in typical]))
        return {phase: per_token * more for phase, per_token in self.by_phase_ns.items()}


def effect(records: TrialRecords, rounds: Rounds) -> Effect | None:
    """None where tokens are not told, do not vary enough, or have no sure effect. `rounds`: with `quantities`."""
    per_token = _per_token(rounds)
    if per_token is None or not per_token.surely_above(0) or records.tokens is None:
        return None
    means = rounds.means()
    return Effect(
        per_token_ns=per_token,
        by_phase_ns={phase: float(means[with_phase(phase)][0] / means[XX][0]) for phase in OWN_PHASES},
    )


def quantities(records: TrialRecords) -> dict[str, Floats]:
    """What the ranks' tokens bring to the rounds; empty where they are not told."""
    if records.tokens is None:
        return {}
    return {name: records.per_round(values) for name, values in records.tokens.sums.items()}


def late_apart(
    records: TrialRecords, rounds: Rounds, of_tokens: Effect, floor: float, hosts: Sequence[int]
) -> Late | None:
    """`late_ranks` beyond what tokens explain.

    The time a token takes is known with an error, which makes a rank with more tokens look late, or one with fewer. So
    a rank is late only where both ends of that interval find it too, and its cost is no better known than these agree.
    """
    late = late_ranks(of_tokens.evened(records), rounds, floor, hosts)
    interval = of_tokens.per_token_ns.interval
    if late is None or interval is None:
        return late
    ends = [late_ranks(of_tokens.evened(records, end), rounds, floor, hosts) for end in interval]
    others = [end for end in ends if end is not None and late.ranks[0] in end.ranks]
    if len(others) < len(ends):
        return None
    apart = max(abs(end.cost_ns.value - late.cost_ns.value) for end in others)
    return replace(late, cost_ns=late.cost_ns.with_error(apart))


def evened(records: TrialRecords, even: TrialRecords) -> Floats:
    """EVENED by round. `even`: the records with every rank at the mean of its tokens."""
    saved: Floats = records.of_own_times(latest) - even.of_own_times(latest)
    if not records.cycles:
        return saved
    hidden = [
        each.of_cycles(lambda c: latest(c.replay.computed()) - float(c.replay.period().mean()))
        for each in (records, even)
    ]
    return saved - (hidden[0] - hidden[1])


def share(m: Means) -> Floats:
    """What unequal tokens cost, as a share of the step; `m`: with EVENED and `quantities`.

    Resampled rounds have another time a token than the one that was taken; the cost is taken in proportion.
    """
    per_token = _slope(m)
    result: Floats = m[EVENED] / m[STEP] * per_token / per_token[0]
    return result


def balance(records: TrialRecords, rounds: Rounds) -> TokenBalance | None:
    """How unequal the ranks' tokens are and what that costs; None where they are not told."""
    if records.tokens is None:
        return None
    per_step, most = rounds.ratio(MEAN), rounds.ratio(lambda m: m[MOST] / m[MEAN])
    if per_step is None or most is None:
        return None
    per_token, square = _per_token(rounds), records.tokens.shares[1]
    rank, extra = _fullest(records, records.tokens, rounds)
    return TokenBalance(
        per_step=per_step,
        most_over_mean=most,
        rank=rank,
        rank_extra=extra,
        per_token_us=per_token and per_token * (US * records.tokens.shares[0]),
        per_square_us=per_token * (US * square) if per_token and square else None,
        saves_ms=rounds.measure(lambda m: share(m) * m[PLAIN], scale=MS) if EVENED in rounds else None,
    )


def _slope(m: Means) -> Floats:
    return sum((m[with_phase(phase)] for phase in OWN_PHASES), np.zeros(1)) / m[XX]


def _per_token(rounds: Rounds) -> Measured | None:
    """The time a token takes, ns; None where the ranks' tokens do not vary enough from step to step."""
    if XX not in rounds:
        return None
    means = rounds.means()
    apart = float(means[XX][0] / means[COUNT][0]) ** 0.5
    return rounds.measure(_slope) if apart > VARIES * float(means[MEAN][0]) else None


def _evened(cycle: Cycle, tokens: TokenRows, per_token_ns: float) -> Cycle:
    """The first step of a block has none before it, so there are cycles of the others."""
    steps, computed = tokens.detailed.get(cycle.key), cycle.replay.computed()
    more = _more(computed, None if steps is None else steps[1:] / cycle.per_step, per_token_ns)
    stretch = np.maximum(1 - more / np.maximum(computed, 1.0), 0.0)
    return replace(cycle, replay=cycle.replay.stretched(stretch))


def _more(own_ns: Floats, tokens: Floats | None, per_token_ns: float) -> Floats:
    """By how much each rank's own time is longer than with the mean of its step's tokens, S x R; 0: not told."""
    if tokens is None or tokens.shape != own_ns.shape:
        return np.zeros_like(own_ns)
    more: Floats = per_token_ns * (tokens - tokens.mean(axis=1, keepdims=True))
    return more


def _of_ranks(tokens: TokenRows) -> dict[int, float]:
    """Mean tokens of each rank's steps."""
    return dict(tokens.by_rank.group_by("rank").agg(pl.col("tokens").mean()).iter_rows())


def _fullest(records: TrialRecords, tokens: TokenRows, rounds: Rounds) -> tuple[int | None, Measured | None]:
    """The rank whose steps have most tokens, and how many more than the mean rank's; None where that is chance."""
    means = _of_ranks(tokens)
    rank = max(sorted(means), key=lambda rank: means[rank])
    mine = tokens.by_rank.filter(pl.col("rank") == rank)
    extra = rounds.extend({"own": records.column(mine, "tokens")}).measure(lambda m: m["own"] - m[MEAN])
    if extra is None or not extra.surely_above(VARIES * float(np.mean(list(means.values())))):
        return None, None
    return rank, extra
