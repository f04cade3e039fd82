"""Lateness that follows the ranks' tokens: its evidence and remedies, and where it cannot be told from a slow rank."""

from __future__ import annotations

from dataclasses import replace

from scaling.analysis.results import Point, TokenBalance, Verdict
from scaling.analysis.verdicts.host_remedies import Offer, saved

ALL_EVEN = "if every rank has the mean of its step's tokens"
UNEQUAL = 1.01
"""Ranks whose fullest has less than this many times the mean rank's tokens have equal batches."""


def evidence(point: Point) -> tuple[str, ...]:
    """What a token takes, how unequal the ranks' tokens are, and what that costs."""
    tokens = point.tokens
    if tokens is None or tokens.per_token_us is None or tokens.saves_ms is None or point.step_ms is None:
        return ()
    lines = [
        f"the ranks' lateness follows their tokens: {tokens.per_token_us.value:.3g} us a token; balancing them would "
        f"save {tokens.saves_ms} of {point.step_ms.value:.3g} ms",
        f"the rank with most tokens in a step has {tokens.most_over_mean.value - 1:.0%} more than the mean rank's "
        f"{tokens.per_step.value:.4g}",
    ]
    if tokens.rank is not None and tokens.rank_extra is not None:
        lines.append(
            f"rank {tokens.rank} has most over all steps, {tokens.rank_extra.value:.4g} more than the mean rank"
        )
    return tuple(lines)


def evened(point: Point) -> tuple[Offer, ...]:
    """Batches of equal work, whose gain is what waiting for the fuller ranks costs."""
    share = point.loss.imbalance if point.loss else None
    gain = None if share is None else saved(share)
    dealt = (
        "bucket by length: sort a pool of samples by length and cut it into batches, and give all ranks neighbouring "
        "batches of it in the same step"
    )
    counted = "batch by tokens in place of samples: pack or cut sequences so that each rank's step has the same number"
    return tuple(Offer(overrides="", code=code, gain=gain, assumes=ALL_EVEN) for code in (dealt, counted))


def or_fuller(verdict: Verdict, point: Point) -> Verdict:
    """A straggler's verdict, doubted where the late rank has more tokens and these may be why."""
    tokens, late = point.tokens, point.straggler
    if tokens is None or late is None or late.rank != tokens.rank or tokens.rank_extra is None:
        return verdict
    if tokens.most_over_mean.value < UNEQUAL or not _may_explain(tokens, late.cost_ms.value):
        return verdict
    why = (
        "the number does not vary enough from step to step to tell"
        if tokens.per_token_us is None
        else f"a token takes {tokens.per_token_us} us"
    )
    doubt = (
        f"undecided whether it is slow or has more to do: it has {tokens.rank_extra.value:.4g} tokens more a step than "
        f"the mean rank's {tokens.per_step.value:.4g}, and {why}"
    )
    return replace(verdict, confidence="low", evidence=(*verdict.evidence, doubt))


def _may_explain(tokens: TokenBalance, cost_ms: float) -> bool:
    """Whether the rank's tokens may be half of what it costs or more, by what is known of the time a token takes."""
    if tokens.per_token_us is None or tokens.rank_extra is None:
        return True
    if tokens.per_token_us.surely_above(0):  # then the straggler is what tokens leave
        return False
    return tokens.per_token_us.most * tokens.rank_extra.value / 1e3 > cost_ms / 2
