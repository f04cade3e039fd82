"""How the stages of a pipeline take turns: what each rank waits for the others, beside what arithmetic gives."""

from __future__ import annotations

import numpy as np

from scaling.analysis.decompose.quantities import TrialRecords
from scaling.analysis.results import Turns
from scaling.analysis.statistics.rounds import Floats, Means, Rounds
from scaling.spec.parallel import Pipeline
from scaling.spec.plan import Plan
from scaling.spec.schedule import PROBE

ONE_STAGE, SEVERAL_STAGES = ("ScheduleGPipe", "Schedule1F1B"), ("ScheduleInterleaved1F1B",)


def turns(rounds: Rounds, records: TrialRecords, plan: Plan) -> Turns | None:
    """None where ranks have no layers of their own."""
    ranks, how = plan.spec.parallel.mesh(records.trial.world_size).pipeline, plan.spec.pipeline
    if ranks == 1:
        return None
    own = {name: records.by_rank(PROBE, detailed=False)[name] for name in ("forward", "compute")}
    computed = own["forward"] + own["compute"]  # rounds x ranks
    whole = computed[np.isfinite(computed).all(axis=1)]
    slowest = int(whole.mean(axis=0).argmax()) if len(whole) else None
    over = None
    if slowest is not None:
        grown = rounds.extend({"slowest": computed[:, slowest], "each": computed.mean(axis=1)})
        over = grown.ratio(lambda m: m["slowest"] / m["each"])
    return Turns(
        schedule=how.schedule,
        stages_per_rank=how.stages_per_rank,
        microbatches=plan.spec.accumulation_steps,
        bubble=rounds.measure(_bubble),
        computed_bubble=computed_bubble(how, ranks, plan.spec.accumulation_steps),
        slowest_rank=slowest,
        slowest_over_mean=over,
    )


def computed_bubble(how: Pipeline, ranks: int, microbatches: int) -> float | None:
    """(p-1) / (v m + p-1): of p equal ranks with v stages each, m microbatches, and a link that costs nothing.

    The share of a rank's time in which it waits. Source: Narayanan et al., Efficient Large-Scale Language Model
    Training on GPU Clusters (2021), section 2.2, there as a share of the time that it computes, (p-1) / (v m).
    Interleaved stages take turns without a gap where the ranks divide the microbatches. None for schedules of which
    this does not hold.
    """
    interleaved = how.schedule in SEVERAL_STAGES and microbatches % ranks == 0
    if how.schedule not in ONE_STAGE and not interleaved:
        return None
    return (ranks - 1) / (how.stages_per_rank * microbatches + ranks - 1)


def _bubble(m: Means) -> Floats:
    waited = m[f"{PROBE}.exposed"] * m["exposed_skew"] / m["exposed_all"]
    share: Floats = waited / (m[f"{PROBE}.forward"] + m[f"{PROBE}.compute"] + waited)
    return share
