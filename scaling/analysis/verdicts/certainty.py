"""How sure each cause of a loss is: what high, medium and low promise (docs/verdicts.md). Pure.

Of 100 runs in which nothing is lost, at most HIGH name a cause at high confidence and MEDIUM at medium or high. So what
is a difference between arms is paid for once for all such causes of a run: their chances are adjusted by Holm's steps
(S. Holm, Scandinavian Journal of Statistics 6(2), 1979), which hold for terms that share an arm, too. A chance comes
from the spread of all arms' equal blocks, which a few rounds tell; and the cause's own interval has to agree.

What stamps within a step show (waits for data, a late rank) is not made by chance, and stands by itself. Which rank is
late is paid for where it is looked for (decompose.stragglers).
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling.analysis.decompose.loss import BETWEEN_ARMS
from scaling.analysis.results import Measured, Point
from scaling.analysis.results.verdicts import NOTABLE
from scaling.analysis.statistics.rounds import beyond, chance, student

HIGH, MEDIUM = 0.01, 0.05
"""Share of runs without a loss that may name a cause at that confidence."""
GROWN = ("input", "host")
"""Phases: in which one rank alone was measured too, the difference from its."""


def confidences(shares: Mapping[str, Measured], point: Point, families: int = 1) -> dict[str, str]:
    """`high` or `medium` for each cause that is named; the others are not sure enough. `shares`: of the step, by cause.

    `families`: world sizes of the run that are asked for causes.
    """
    compared = [*BETWEEN_ARMS, *(GROWN if point.arms_ms.bare_one else ())]
    tested = {cause: share for cause, share in shares.items() if cause in compared}
    above = {bound: _holm(tested, point, bound, families) for bound in (0.0, NOTABLE)}
    named = {}
    for cause, share in shares.items():
        if not (share.surely_above(0) and share.value > NOTABLE):
            continue
        if cause in tested and (above[0.0][cause] > MEDIUM or not _loses(cause, share, point)):
            continue
        sure = share.surely_above(NOTABLE) and _rest_is_known(share, point)
        sure = sure and above[NOTABLE].get(cause, 0.0) <= HIGH
        if cause == "straggler" and point.straggler is not None:
            sure = sure and chance(point.straggler.skew_ms) * point.world_size * families <= HIGH
        named[cause] = "high" if sure else "medium"
    return named


def confidence_of(share: Measured, tests: int) -> str:
    """`high` or `medium` for a share that is one of `tests` differences; empty where chance makes it too easily."""
    if not share.surely_above(0) or share.value <= NOTABLE or chance(share) * tests > MEDIUM:
        return ""
    return "high" if share.surely_above(NOTABLE) and chance(share, NOTABLE) * tests <= HIGH else "medium"


def _holm(shares: Mapping[str, Measured], point: Point, bound: float, families: int) -> dict[str, float]:
    """Each cause's chance if it costs no more than `bound`, adjusted for all of them in all `families`."""
    each = sorted((_chance(cause, share, point, bound), cause) for cause, share in shares.items())
    adjusted: dict[str, float] = {}
    most = 0.0
    for place, (probability, cause) in enumerate(each):
        most = max(most, min(1.0, probability * (len(each) - place) * families))
        adjusted[cause] = most
    return adjusted


def _chance(cause: str, share: Measured, point: Point, bound: float) -> float:
    apart = point.overhead.equal_arms_apart
    if cause not in BETWEEN_ARMS or apart is None or apart.value <= 0:
        return chance(share, bound)
    of_all_arms = beyond((share.value - bound) / apart.value * student(apart.n), apart.n)
    return (
        max(of_all_arms, chance(share, bound)) if bound else of_all_arms
    )  # at high confidence both have to agree


def _loses(cause: str, share: Measured, point: Point) -> bool:
    """Whether a difference between arms exceeds that of equal blocks, in a step that is surely slower than alone."""
    if cause not in BETWEEN_ARMS:
        return True
    slower = point.efficiency is None or point.efficiency.surely_below(1)
    return slower and share.value > point.overhead.floor


def _rest_is_known(share: Measured, point: Point) -> bool:
    """Whether the efficiency (or the share itself, without one) and the rest are known well enough to be sure."""
    rest = point.loss.unexplained if point.loss else None
    explained = rest is None or abs(rest.value) < share.value
    headline = point.efficiency or share
    return explained and (headline.half_width or 0.0) <= share.value / 2
