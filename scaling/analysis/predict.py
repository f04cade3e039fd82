"""A prediction with its interval: the run's own error, and what the model leans on.

Every assumption that a change leans on is turned the other way, one at a time; what that moves is added to the
statistical interval in quadrature. How far each is turned was set by benchmarks/prediction.py.
"""

from __future__ import annotations

import math

from scaling.analysis.change import AS_IT_WAS, Change, Lean, Source
from scaling.analysis.results import Measured
from scaling.analysis.stats import interval
from scaling.analysis.whatif import outcome

LAUNCH = 0.02
"""Compute and link differ by so much from launch to launch."""
LINK = 0.02
"""alpha and beta explain another rate's or world size's transfers to so much."""
ALPHA = 1.3
"""Latency is known elsewhere to this factor."""
FIXED_SHARE = 0.2
"""Of forward and backward, what a smaller micro-batch may not spare, where one batch was measured."""

_POSITIVE = ("step", "efficiency", "gain")


def predict(
    source: Source, change: Change, *, other_launch: bool = True, doubt: float = 0.0
) -> dict[str, Measured]:
    """`outcome` with intervals.

    `other_launch` False: for a comparison within one launch, as `verify` makes it. `doubt`: by what
    fraction of the step the model missed what the run itself measured, at its back-test.
    """
    values = outcome(source, change)
    moves = [] if _nothing(source, change) else _moves(source, change, other_launch=other_launch)
    if moves and doubt:
        moves.append({name: doubt * (values[name][0] if name in _POSITIVE else 0.0) for name in values})
    found = {}
    for name, drawn in values.items():
        number = interval(
            float(drawn[0]), drawn[1:], source.units, groups=source.groups, positive=name in _POSITIVE
        )
        found[name] = _with_model(number, math.hypot(*(move[name] for move in moves)))
    return found


def leans(source: Source, change: Change, *, other_launch: bool) -> tuple[Lean, ...]:
    """The assumptions that this change leans on, each turned the other way."""
    moved = change.world_size not in (None, source.world_size)
    elsewhere = moved or change.fabric is not None
    micro_batch = (change.batch or source.batch) / (change.accumulation or source.accumulation)
    found = [Lean(residual_follows=False), Lean(overlap_turned=True)]
    if other_launch:
        found += [Lean(compute=1 + LAUNCH), Lean(transfer=1 + LAUNCH)]
    if elsewhere:
        found += [Lean(transfer=1 + max(LINK, change.fabric_doubt))]
    if elsewhere or change.bucket_cap_mb is not None:
        found += [Lean(alpha=ALPHA)]
    if moved:
        found += [Lean(jitter=0.0)]
    if micro_batch != source.batch / source.accumulation:
        found += [Lean(fixed_off=FIXED_SHARE if source.fixed_doubt is None else source.fixed_doubt)]
    return tuple(found)


def _nothing(source: Source, change: Change) -> bool:
    return change in (AS_IT_WAS, Change(world_size=source.world_size))


def _moves(source: Source, change: Change, *, other_launch: bool) -> list[dict[str, float]]:
    """By how much each assumption moves each number."""
    middle = source.estimate()
    upright = outcome(middle, change)
    turned = [outcome(middle, change, lean) for lean in leans(source, change, other_launch=other_launch)]
    return [{name: float(other[name][0] - upright[name][0]) for name in upright} for other in turned]


def _with_model(number: Measured, by: float) -> Measured:
    """The interval with the model's half-width added in quadrature on either side; what is positive stays so."""
    if number.low is None or number.high is None or not by:
        return number
    below, above = (math.hypot(edge - number.value, by) for edge in (number.low, number.high))
    low = number.value - below
    if number.low > 0:
        low = max(low, number.value / (1 + below / number.value))
    return Measured(value=number.value, low=low, high=number.value + above, n=number.n)
