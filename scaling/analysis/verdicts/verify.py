"""Whether a remedy held: its plain steps against those of the present settings, measured in turns.

The gain is a ratio of throughputs, paired by round (blocks of one launch) or by pair of launches.
"""

from __future__ import annotations

import numpy as np

from scaling.analysis.decompose.trials import RunRecords
from scaling.analysis.results import SCHEMA, Measured, Remedy, Verdict, Verification
from scaling.analysis.statistics.rounds import Floats, Rounds
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN, VARIANT

INTERLEAVED, ALTERNATING = "interleaved blocks of one launch", "alternating launches"


def interleaved(run: RunRecords) -> tuple[Measured | None, Measured | None]:
    """(gain, A/A ratio) of a launch that ran `plain` and `variant` in turns."""
    plan, n = run.plan, run.plan.ranks
    assert plan.variant is not None
    records = run.trial(n)
    samples = plan.variant.batch_at(n) / plan.spec.batch_at(n)
    rounds = Rounds(
        {
            "now": records.arm(PLAIN)["step"],
            "then": records.arm(VARIANT)["step"],
            "first": records.arm(PLAIN, half=0)["step"],
            "second": records.arm(PLAIN, half=1)["step"],
        },
        records.launches,
        seed=plan.spec.seed,
    )
    return (
        rounds.ratio(lambda m: samples * m["now"] / m["then"]),
        rounds.ratio(lambda m: m["first"] / m["second"]),
    )


def alternating(
    now: Floats, then: Floats, samples: float, seed: int
) -> tuple[Measured | None, Measured | None]:
    """The same from plain step times of pairs of launches. `samples`: of a step with the remedy over a present one."""
    count = min(len(now), len(then))
    pairs = Rounds({"now": now[:count], "then": then[:count]}, np.zeros(count, dtype=np.int64), seed=seed)
    halves = Rounds(
        {"first": now[: count - 1], "second": now[1:count]}, np.zeros(count - 1, dtype=np.int64), seed=seed
    )
    return (
        pairs.ratio(lambda m: samples * m["now"] / m["then"]),
        halves.ratio(lambda m: m["first"] / m["second"]) if count > 1 else None,
    )


def judge(
    plan: Plan,
    cause: Verdict,
    remedy: Remedy,
    gain: Measured | None,
    same: Measured | None,
    how: str,
) -> Verification:
    """Held: faster by more than the A/A ratio differs from 1, and by at least the lower end of the prediction."""
    return Verification(
        schema=SCHEMA,
        run=plan.id,
        world_size=cause.world_size,
        cause=cause.cause,
        remedy=remedy.overrides,
        code=remedy.code,
        predicted_gain=remedy.predicted_gain,
        measured_gain=gain,
        aa_floor=same,
        how=how,
        verdict=_verdict(gain, same, remedy.predicted_gain),
    )


def _verdict(gain: Measured | None, same: Measured | None, promised: Measured | None) -> str:
    floor = abs(same.value - 1) if same else 0.0
    if gain is None or not gain.differs_from(1, by=floor):
        return "not_distinguishable"
    least = promised.low if promised and promised.low is not None else 1.0
    return "held" if gain.value > 1 and gain.most >= least else "not_held"
