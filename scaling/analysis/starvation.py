"""Steps that wait for their batch: how much of a step that is, and how many data workers would end it.

A worker makes a batch in `make`; `workers` of them deliver one every make / workers. Where a step would
take less than that, it waits. What the waiting costs is a counterfactual: the probe's steps replayed
with every rank's times ahead by what its fetches took longer than a fetch whose batch is ready. So a
rank that waits while another waits longer is not counted twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from scaling.analysis.quantities import TrialRecords
from scaling.analysis.results import Loader, Measured, Point, Remedy, Verdict
from scaling.analysis.simulate import period
from scaling.analysis.stats import Floats, Means, Rounds, scaled
from scaling.plan import Plan
from scaling.records import PLAIN, PROBE

HEADROOM = 1.25
"""Workers are advised to be busy four fifths of the time: busier ones leave nothing for a batch that takes longer."""
NOTABLE = 0.03
"""As scaling.analysis.verdict has it."""


def loader(records: TrialRecords, rounds: Rounds, plan: Plan, *, fed_ns: int, cores: int) -> Loader | None:
    """How a trial's batches were made; None where they were made up.

    `fed_ns`: a fetch whose batch is ready, a micro-step (below 0: unknown); `cores`: of a host, 0 unknown.
    """
    spec, n = plan.spec, records.trial.world_size
    if spec.data.target is None or not records.making:
        return None
    fed = max(0, fed_ns) * spec.accumulation_steps
    rounds = rounds.extend({name: records.per_round(found) for name, found in records.making.items()})
    rounds = rounds.extend({"sim_fed": records.per_round(_fed_periods(records, fed))})
    share: Callable[[Means], Floats] = (
        (lambda m: (m["sim"] - m["sim_fed"]) / m["detailed"])
        if n > 1
        else (lambda m: np.maximum(m[f"{PROBE}.input"] - fed, 0.0) / m[PROBE])
    )
    waits, make, step = rounds.measure(share), rounds.ratio("make"), rounds.measure(PLAIN)
    if waits is None or make is None or step is None:
        return None
    fed_step_ns = step.value * (1 - waits.value)
    batches = spec.accumulation_steps
    cpu = rounds.ratio("make_cpu")
    # Without workers it is the training's process that makes them, and its time has that in it.
    both = rounds.measure(lambda m: m["train_cpu"] + m["make_cpu"] * batches * (spec.data.workers > 0))
    top = spec.topology
    # Where ranks are spread, every rank of a host is at work, in one sub-group or another.
    ranks_here = (
        n if spec.launcher == "emulated" else top.ranks_per_host if top.spread else max(top.shares(n))
    )
    return Loader(
        workers=spec.data.workers,
        make_ms=scaled(make, 1e-6),
        make_cpu_ms=scaled(cpu, 1e-6),
        wait_share=waits,
        workers_needed=max(1, math.ceil(HEADROOM * make.value * batches / fed_step_ns)),
        cores_needed=None if both is None else round(ranks_here * both.value / fed_step_ns, 2),
        cores=cores or None,
    )


def _fed_periods(records: TrialRecords, fed_ns: float) -> dict[tuple[int, int], float]:
    """Mean period of each round's steps had every batch been ready."""
    found = {}
    for cycle in records.cycles:
        waited = np.maximum(cycle.input - fed_ns, 0.0)
        fed = period(
            cycle.ready - waited[:, :, None], cycle.compute_end - waited, cycle.transfer, cycle.start
        )
        found[cycle.key] = float(fed.mean())
    return found


def with_input(verdicts: tuple[Verdict, ...], point: Point, plan: Plan) -> tuple[Verdict, ...]:
    """The verdicts of one world size with `input` in its place, when its steps wait for their batches."""
    found = point.loader
    if found is None or found.wait_share is None or found.wait_share.low is None:
        return verdicts
    share = found.wait_share
    if not (found.wait_share.low > 0 and share.value > NOTABLE):
        return verdicts
    verdict = Verdict(
        cause="input",
        world_size=point.world_size,
        share=share,
        confidence="high" if found.wait_share.low > NOTABLE else "medium",
        evidence=_evidence(found, point),
        try_=_remedies(found, plan),
    )
    others = [v for v in verdicts if v.cause not in ("input", "undecided")]
    larger = [v for v in others if v.cause == "slow_path" or (v.share and v.share.value > share.value)]
    return (*larger, verdict, *(v for v in others if v not in larger))


def _evidence(found: Loader, point: Point) -> tuple[str, ...]:
    made = f"making a batch takes {found.make_ms.value:.3g} ms"
    if found.workers:
        every = found.make_ms.value / found.workers
        many = "1 worker makes" if found.workers == 1 else f"{found.workers} workers make"
        made = f"{made}, so {many} one every {every:.3g} ms a rank"
    else:
        made = f"{made} in the training process, between steps"
    lines = [made]
    if point.step_ms is not None and found.wait_share is not None:
        without = point.step_ms.value * (1 - found.wait_share.value)
        lines.append(
            f"without waiting for input a step would take {without:.3g} of {point.step_ms.value:.3g} ms"
        )
    if point.efficiency is not None and point.world_size > 1 and _hides(point):
        lines.append("one rank alone waits for its input too, so the efficiency does not show it")
    if _too_few_cores(found):
        lines.append(
            f"no number of workers will do: training and making batches that fast takes {found.cores_needed:.1f} "
            f"cores a host, there are {found.cores}; make samples cheaper (decoded or resized beforehand)"
        )
    return tuple(lines)


def _hides(point: Point) -> bool:
    """Whether the growth of input over one rank alone is less than half of what is waited for."""
    grown = point.loss.input if point.loss else None
    share = point.loader.wait_share if point.loader else None
    return grown is not None and share is not None and grown.value < share.value / 2


def _too_few_cores(found: Loader) -> bool:
    return found.cores_needed is not None and found.cores is not None and found.cores_needed > found.cores


def _gain(share: Measured | None) -> Measured | None:
    """Throughput over the present, were a share of the step saved."""
    if share is None or share.low is None or share.high is None:
        return None
    value, low, high = (1 / (1 - min(x, 0.99)) for x in (share.value, share.low, share.high))
    return Measured(value=value, low=low, high=high, n=share.n)


def _remedies(found: Loader, plan: Plan) -> tuple[Remedy, ...]:
    if _too_few_cores(found) or found.workers_needed is None:
        return ()
    if found.workers_needed > found.workers:
        return (
            Remedy(
                overrides=f"data.workers={found.workers_needed}",
                code=f"DataLoader(dataset, num_workers={found.workers_needed})",
                predicted_gain=_gain(found.wait_share),
            ),
        )
    deeper = plan.spec.data.prefetch * 2  # enough on average: they come in bunches
    return (
        Remedy(
            overrides=f"data.prefetch={deeper}",
            code=f"DataLoader(dataset, num_workers={found.workers}, prefetch_factor={deeper})",
        ),
    )
