"""What the analysis says of a simulated cluster beside what was put in."""

from __future__ import annotations

from typing import Any

from scaling.analysis.results import Measured, Point

MS = 1e6
SLACK = 0.002
"""Of the step (of the number itself for rates), added to either end of an interval.

The causes are known without noise and without probe. Noise of the link lengthens the mean of a
maximum, and the detailed probe's own time hides some transfer: both of second order, both below
this, and an interval may be narrower.
"""


def compared(point: Point, truth: Any) -> dict[str, tuple[Measured | None, float, float]]:
    """Number, truth and slack by name."""
    step = truth.step_ns["plain"] / MS
    found = {
        "efficiency": (point.efficiency, truth.efficiency, SLACK),
        "step": (point.step_ms, step, SLACK * step),
        "busbw": (point.comm.busbw_gbit_s, truth.busbw_gbit_s, SLACK * truth.busbw_gbit_s),
        "closure": (point.closure, 1.0, SLACK),
    }
    for part in ("exposed_transfer", "exposed_skew"):
        found[part] = (getattr(point.parts_ms, part), truth.parts_all_ns[part] / MS, SLACK * step)
    for cause, share in truth.loss.items():
        if not (cause == "small_batch" and share == 0):  # weak scaling has none
            found[f"loss.{cause}"] = (getattr(point.loss, cause), share, SLACK)
    if truth.late:
        cost = point.straggler.cost_ms if point.straggler else None
        found["straggler.cost"] = (cost, truth.late_cost_ns / MS, SLACK * step)
    return found


def holds(number: Measured | None, truth: float, slack: float) -> bool:
    return number is not None and number.low - slack <= truth <= number.high + slack
