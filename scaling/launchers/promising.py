"""Say how long a run takes, from a timed step, and what its budget leaves no time for."""

from __future__ import annotations

import dataclasses
import math
import time

from scaling.errors import InputError
from scaling.launchers.tryout import needs_trying, this_machine, time_model, try_model
from scaling.spec.batch_search import Largest
from scaling.spec.costs import asked_batches, fit, promise
from scaling.spec.plan import Plan
from scaling.spec.promise import Content, Timing, left_out
from scaling.units import format_duration


def promised(plan: Plan) -> Plan:
    """The plan with what fits into its budget, and with how long the run takes.

    Without a timed step (none was done in time, or the run's devices are elsewhere) the plan stays as it is, and the
    launch fits itself. InputError where not even the least fits; it names a budget that is enough.
    """
    if plan.spec.launcher == "slurm" or plan.variant is not None:
        new = plan if plan.variant is None else dataclasses.replace(plan, spec=plan.variant)
        if needs_trying(new.spec):
            try_model(new)
        return plan
    machine, begin = this_machine(), time.monotonic()
    timing = time_model(plan, machine)
    if timing is None:
        return plan
    fitted = fit(plan, timing, machine)
    if not fitted.fits:
        raise InputError(refusal(plan, timing, fitted.enough_s))
    said = promise(plan, timing, machine, fitted, time.monotonic() - begin)
    return dataclasses.replace(plan, content=fitted.content, promise=said)


def refusal(plan: Plan, timing: Timing, enough_s: float) -> str:
    """Why a budget holds nothing, and which one does."""
    measure, one = plan.spec.measure, timing.steps[0]
    return (
        f"measure.budget_s={measure.budget_s:g}: too short for {min(measure.rounds_min, 3)} rounds of the least "
        f"(a step of batch {one.batch} took {format_duration(one.step_s)} in one process); "
        f"measure.budget_s={rounded_up(enough_s)} is enough"
    )


def rounded_up(seconds: float) -> int:
    """Seconds to two figures, rounded up."""
    unit = int(10 ** max(0, math.floor(math.log10(max(seconds, 1))) - 1))
    return max(1, math.ceil(seconds / unit) * unit)


def said_left_out(plan: Plan, content: Content, largest: Largest | None = None) -> tuple[str, ...]:
    """One line about what the budget leaves out, and the budget that would hold it; none where all is measured.

    `largest`: what the search of batch=max found, if it is over.
    """
    batches = asked_batches(plan.spec)
    if largest is not None:
        batches = tuple(sorted({batch for rungs in largest.rungs().values() for batch in rungs}))
    parts = left_out(content, batches=batches, world_sizes=plan.spec.world_sizes)
    if largest is not None and any(found.late for found in largest.items):
        parts = ("larger batches in the search for the largest", *parts)
    if not parts:
        return ()
    budget_s = plan.spec.measure.budget_s
    whole_s = rounded_up(content.whole_s or 0.0)
    more = f"; measure.budget_s={whole_s} would hold all" if whole_s > budget_s else ""
    return (f"the budget of {format_duration(budget_s)} leaves out {'; '.join(parts)}{more}",)
