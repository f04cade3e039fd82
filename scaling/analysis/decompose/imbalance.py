"""What part of the ranks' lateness their tokens explain: batches of unequal work, not slow machines.

A rank's own time in a step is taken as

    own = a (of the rank) + c (of the step) + b x tokens

and b, the time a token takes, is fitted by least squares over the steps with phase stamps (decompose.token_rows). What
unequal tokens cost is a counterfactual: the step with every rank at the mean of the step's tokens. Late ranks are
looked for in these steps, so that a rank with more to do is not taken for a slow one.

Where each rank always has the same number there is no telling whether a late rank is slow or has more to do: b is None.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from scaling.analysis.decompose.quantities import Cycle, TrialRecords
from scaling.analysis.decompose.stragglers import STEP, Late, late_ranks, latest
from scaling.analysis.decompose.token_rows import COUNT, MEAN, MOST, OWN_PHASES, XX, TokenRows, with_phase
from scaling.analysis.results import Measured, TokenBalance
from scaling.analysis.statistics.rounds import MS, Floats, Means, Rounds
from scaling.spec.schedule import PLAIN

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
        return dataclasses.replace(
            records,
            cycles=tuple(_evened(cycle, tokens, slope) for cycle in records.cycles),
            light=records.light
            and records.light.changed(lambda key, own: own - _more(own, tokens.light.get(key), slope)),
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
    return {name: records.per_round(dict(values)) for name, values in records.tokens.sums.items()}


def late_apart(
    records: TrialRecords, rounds: Rounds, found: Effect | None, floor: float, hosts: Sequence[int]
) -> Late | None:
    """`late_ranks` beyond what tokens explain.

    The time a token takes is known with an error, which makes a rank with more tokens look late, or one with fewer. So
    a rank is late only where both ends of that interval find it too, and its cost is no better known than these agree.
    """
    if found is None:
        return late_ranks(records, rounds, floor, hosts)
    late = late_ranks(found.evened(records), rounds, floor, hosts)
    interval = found.per_token_ns.interval
    if late is None or interval is None:
        return late
    ends = [late_ranks(found.evened(records, end), rounds, floor, hosts) for end in interval]
    others = [end for end in ends if end is not None and late.ranks[0] in end.ranks]
    if len(others) < len(ends):
        return None
    apart = max(abs(end.cost_ns.value - late.cost_ns.value) for end in others)
    return dataclasses.replace(late, cost_ns=late.cost_ns.with_error(apart))


def evened(records: TrialRecords, even: TrialRecords) -> Floats:
    """EVENED by round. `even`: the records with every rank at the mean of its tokens."""
    saved: Floats = records.of_own_times(latest) - even.of_own_times(latest)
    if not records.cycles:
        return saved
    hidden = [
        each.of_cycles(lambda c: latest(c.replay.computed()) - float(c.replay.period().mean()))
        for each in (records, even)
    ]
    result: Floats = saved - (hidden[0] - hidden[1])
    return result


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
    per_token = _per_token(rounds)
    rank, extra = _fullest(records, records.tokens, rounds)
    return TokenBalance(
        per_step=per_step,
        most_over_mean=most,
        rank=rank,
        rank_extra=extra,
        per_token_us=per_token and per_token * US,
        saves_ms=rounds.measure(lambda m: share(m) * m[PLAIN], scale=MS) if EVENED in rounds else None,
    )


def _slope(m: Means) -> Floats:
    result: Floats = sum((m[with_phase(phase)] for phase in OWN_PHASES), np.zeros(1)) / m[XX]
    return result


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
    more = _more(computed, None if steps is None else steps[1:] / cycle.of, per_token_ns)
    stretch = np.maximum(1 - more / np.maximum(computed, 1.0), 0.0)
    return dataclasses.replace(cycle, replay=cycle.replay.stretched(stretch))


def _more(own: Floats, tokens: Floats | None, per_token_ns: float) -> Floats:
    """By how much each rank's own time is longer than with the mean of its step's tokens, S x R; 0: not told."""
    if tokens is None or tokens.shape != own.shape:
        return np.zeros_like(own)
    more: Floats = per_token_ns * (tokens - tokens.mean(axis=1, keepdims=True))
    return more


def _of_ranks(tokens: TokenRows) -> dict[int, float]:
    """Mean tokens of each rank's steps."""
    return dict(tokens.by_rank.group_by("rank").agg(pl.col("tokens").mean()).iter_rows())


def _fullest(records: TrialRecords, tokens: TokenRows, rounds: Rounds) -> tuple[int | None, Measured | None]:
    """The rank whose steps have most tokens, and how many more than the mean rank's; None where that is chance."""
    means = _of_ranks(tokens)
    rank = max(sorted(means), key=lambda one: means[one])
    mine = tokens.by_rank.filter(pl.col("rank") == rank)
    own = records.per_round({(a, b): v for a, b, _, v in mine.iter_rows()})
    extra = rounds.extend({"own": own}).measure(lambda m: m["own"] - m[MEAN])
    if extra is None or not extra.surely_above(VARIES * float(np.mean(list(means.values())))):
        return None, None
    return rank, extra
