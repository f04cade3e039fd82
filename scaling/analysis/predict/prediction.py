"""A prediction with its interval: the run's own error and the model's assumptions.

Each assumption that a change relies on is varied, one at a time. The change in the result is added to the statistical
interval in quadrature. How far each is varied was set with benchmarks/prediction.py.
"""

from __future__ import annotations

import math

from scaling.analysis.predict.change import AS_IT_WAS, Change, Lean, Source
from scaling.analysis.predict.whatif import outcome
from scaling.analysis.results import Measured
from scaling.analysis.statistics.rounds import interval

LAUNCH = 0.02
"""Relative difference of compute and link between launches."""
LINK = 0.02
"""Relative error of alpha and beta for another rate or world size."""
FIXED_SHARE = 0.2
"""Possible fixed share of forward and backward where only one batch was measured."""

_POSITIVE = ("step", "efficiency", "gain")


def predict(
    source: Source, change: Change, *, other_launch: bool = True, doubt: float = 0.0
) -> dict[str, Measured]:
    """`outcome` with intervals.

    `other_launch`: False for a comparison within one launch, as `verify` makes it. `doubt`: the model's relative error
    on the run itself, from the back-test.
    """
    values = outcome(source, change)
    moves = [] if unchanged(source, change) else _moves(source, change, other_launch=other_launch)
    if moves and doubt:
        moves.append({name: doubt * (values[name][0] if name in _POSITIVE else 0.0) for name in values})
    found = {}
    for name, drawn in values.items():
        number = interval(
            float(drawn[0]), drawn[1:], source.units, groups=source.groups, positive=name in _POSITIVE
        )
        found[name] = number.with_error(math.hypot(*(move[name] for move in moves)))
    return found


def leans(source: Source, change: Change, *, other_launch: bool) -> tuple[Lean, ...]:
    """The assumptions that this change relies on, each varied by itself."""
    return tuple(lean for _, lean in named_leans(source, change, other_launch=other_launch))


def named_leans(source: Source, change: Change, *, other_launch: bool) -> list[tuple[str, Lean]]:
    """The same, each with its name in `assumptions`."""
    moved = change.world_size not in (None, source.world_size)
    elsewhere = moved or change.fabric is not None
    micro_batch = (change.batch or source.batch) / (change.accumulation or source.accumulation)
    found = [("missed", Lean(residual_follows=False)), ("overlap", Lean(overlap_turned=True))]
    if other_launch:
        found += [
            ("launch_compute", Lean(compute=1 + LAUNCH)),
            ("launch_link", Lean(transfer=1 + LAUNCH)),
        ]
    if elsewhere:
        found += [("bandwidth", Lean(transfer=1 + max(LINK, change.fabric_doubt)))]
    if elsewhere or change.bucket_cap_mb is not None:
        found += [("latency", Lean(alpha=change.latency_factor))]
    if moved:
        found += [("jitter", Lean(jitter=0.0))]
    if micro_batch != source.batch / source.accumulation:
        doubt = FIXED_SHARE if source.fixed_doubt is None else source.fixed_doubt
        found += [("fixed", Lean(fixed_off=doubt))]
    return found


def unchanged(source: Source, change: Change) -> bool:
    """Whether nothing is asked that the run did not measure."""
    return change in (AS_IT_WAS, Change(world_size=source.world_size))


def _moves(source: Source, change: Change, *, other_launch: bool) -> list[dict[str, float]]:
    """By how much each varied assumption changes each number."""
    middle = source.estimate()
    upright = outcome(middle, change)
    turned = [outcome(middle, change, lean) for lean in leans(source, change, other_launch=other_launch)]
    return [{name: float(other[name][0] - upright[name][0]) for name in upright} for other in turned]
