"""A prediction with its interval: the run's own error and the model's assumptions.

Each assumption that a change relies on is varied, one at a time. The change in the result is added to the statistical
interval in quadrature. How far each is varied was set with benchmarks/prediction.py.

Every assumption of a prediction, with its effect on the answer. Pure.
"""

from __future__ import annotations

import dataclasses
import math

from scaling.analysis.predict.change import NO_CHANGE, Change, Lean, Source
from scaling.analysis.predict.fabrics import Links
from scaling.analysis.predict.whatif import outcome
from scaling.analysis.results import Assumption, Measured
from scaling.analysis.statistics.rounds import interval

LAUNCH = 0.02
"""Relative difference of compute and link between launches."""
LINK = 0.02
"""Relative error of alpha and beta for another rate or world size."""
FIXED_SHARE = 0.2
"""Possible fixed share of forward and backward where only one batch was measured."""

FIGURES = ("step", "efficiency", "gain")
"""What `outcome` gives beside the losses; all are positive."""


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
        moves.append({name: doubt * (values[name][0] if name in FIGURES else 0.0) for name in values})
    predicted = {}
    for name, drawn in values.items():
        number = interval(
            float(drawn[0]), drawn[1:], source.units, groups=source.groups, positive=name in FIGURES
        )
        predicted[name] = number.with_error(math.hypot(*(move[name] for move in moves)))
    return predicted


def named_leans(source: Source, change: Change, *, other_launch: bool) -> list[tuple[str, Lean]]:
    """What the prediction leans on, each with its name in `assumptions`."""
    moved = change.world_size not in (None, source.world_size)
    elsewhere = moved or change.fabric is not None
    micro_batch = (change.batch or source.batch) / (change.accumulation or source.accumulation)
    listed = [("missed", Lean(residual_follows=False)), ("overlap", Lean(overlap_rule_swapped=True))]
    if other_launch:
        listed += [("launch_compute", Lean(compute=1 + LAUNCH)), ("launch_link", Lean(transfer=1 + LAUNCH))]
    if elsewhere:
        listed += [("bandwidth", Lean(transfer=1 + max(LINK, change.fabric_doubt)))]
    if elsewhere or change.bucket_cap_mb is not None:
        listed += [("latency", Lean(alpha=change.latency_factor))]
    if moved:
        listed += [("jitter", Lean(jitter=0.0))]
    if micro_batch != source.batch / source.accumulation:
        doubt = FIXED_SHARE if source.fixed_doubt is None else source.fixed_doubt
        listed += [("fixed", Lean(fixed_off=doubt))]
    return listed


def unchanged(source: Source, change: Change) -> bool:
    """Whether nothing is asked that the run did not measure."""
    return change in (NO_CHANGE, Change(world_size=source.world_size))


def _moves(source: Source, change: Change, *, other_launch: bool) -> list[dict[str, float]]:
    """By how much each varied assumption changes each number."""
    middle = source.estimate()
    upright = outcome(middle, change)
    leans = named_leans(source, change, other_launch=other_launch)
    turned = [outcome(middle, change, lean) for _, lean in leans]
    return [{name: float(other[name][0] - upright[name][0]) for name in upright} for other in turned]


SCALE_OFF = 0.9
"""A `compute_scale` that was given is varied by this factor."""


def assumptions(
    source: Source, change: Change, links: Links | None, *, device: str, moved: bool, doubt: float
) -> tuple[Assumption, ...]:
    """Those of one world size, the largest effect first.

    `links`: where the target's figures come from; None: the measured link is kept. `device`: the run's; `moved`:
    whether the target is another machine. `doubt`: the model's relative error on the run itself, from the back-test.
    """
    middle = source.estimate()
    upright = outcome(middle, change)

    def effect(what: str, varied: str, change: Change, lean: Lean | None = None) -> Assumption:
        turned = outcome(middle, change, *([] if lean is None else [lean]))
        step, efficiency = (float(turned[name][0]) for name in ("step", "efficiency"))
        return Assumption(
            what=what,
            varied=varied,
            step_change=step / float(upright["step"][0]) - 1,
            efficiency_change=efficiency - float(upright["efficiency"][0]),
        )

    assumed = [
        effect(*_sentences(name, lean, source, links), change, lean)
        for name, lean in named_leans(source, change, other_launch=True)
    ]
    if moved or change.compute_scale != 1:
        assumed.append(effect(*_compute(change, device)))
    if doubt:
        claim = f"the model errs as on the run itself, where the back-test missed by {doubt:.1%}"
        assumed.append(Assumption(what=claim, varied="as much", step_change=doubt, efficiency_change=None))
    return tuple(sorted(assumed, key=lambda assumption: -abs(assumption.step_change)))


def _compute(change: Change, device: str) -> tuple[str, str, Change]:
    """How fast the target computes: given, or not known and assumed to be as in the run."""
    scale = change.compute_scale
    if scale == 1:
        claim = f"compute is as fast as in the run, on {device}; compute_scale=2 makes it twice as fast"
        return claim, "twice as fast", dataclasses.replace(change, compute_scale=2.0)
    claim = f"compute is {scale:g} times as fast as in the run, on {device}, as compute_scale says"
    return claim, f"{1 - SCALE_OFF:.0%} less", dataclasses.replace(change, compute_scale=scale * SCALE_OFF)


def _sentences(name: str, lean: Lean, source: Source, links: Links | None) -> tuple[str, str]:
    """What is assumed, and how it is varied."""
    if name == "bandwidth":
        return f"bandwidth: {_from(links.bandwidth if links else ())}", f"{lean.transfer - 1:.0%} slower"
    if name == "latency":
        return f"latency: {_from(links.latency if links else ())}", f"x{lean.alpha:g}"
    if name == "overlap":
        follows = "in proportion to the time that both run" if source.kernels else "as much as in the run"
        other = "as much as in the run" if source.kernels else "in proportion to the time that both run"
        return f"communication slows compute down {follows}", other
    return {
        "missed": (
            "what the simulation misses of the measured step is in proportion to the step",
            "a fixed time instead",
        ),
        "launch_compute": ("compute is as fast as in the run's launch", f"{LAUNCH:.0%} slower"),
        "launch_link": ("links are as fast as in the run's launch", f"{LAUNCH:.0%} slower"),
        "jitter": (
            "ranks vary from step to step as measured, so the latest of more ranks is later",
            "not at all",
        ),
        "fixed": ("the fixed part of forward and backward is known", f"{lean.fixed_off:.0%} more"),
    }[name]


def _from(notes: tuple[str, ...]) -> str:
    return "; ".join(notes) if notes else "as measured in the run"
