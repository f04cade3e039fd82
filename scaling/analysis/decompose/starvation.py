"""Steps that wait for their batch: the share of the step, and the number of data workers that would end it.

A worker makes a batch in `make`, so `workers` of them deliver one every make / workers. A step that is shorter than
this waits. The cost of waiting is a counterfactual: the probe's steps are replayed without the time by which each
fetch exceeded one whose batch is ready. A rank that waits while another waits longer is therefore not counted twice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from scaling.analysis.decompose.quantities import Cycle, TrialRecords
from scaling.analysis.results import DataLoading, Point, Remedy, Verdict
from scaling.analysis.results.verdicts import NOTABLE, named
from scaling.analysis.statistics.rounds import MS, Formula, Rounds, level_of_each
from scaling.analysis.verdicts.host_remedies import ALL_READY, HEADROOM, saved
from scaling.settings.plan import Plan
from scaling.settings.schedule import PLAIN, PROBE
from scaling.units import significant

UNEVEN = 1.25
"""A rank is named if its steps spend this many times the mean over ranks in input."""


def loader(
    records: TrialRecords, rounds: Rounds, plan: Plan, *, fed_ns: int, cores: int
) -> DataLoading | None:
    """How a trial's batches were made; None for synthetic data.

    `fed_ns`: duration of a fetch whose batch is ready, for one micro-step (below 0: unknown). `cores`: of a host (0:
    unknown).
    """
    spec, n = plan.spec, records.trial.world_size
    if spec.data.target is None or not records.making:
        return None
    fed = max(0, fed_ns) * spec.accumulation_steps  # ns of a step's fetches that do not wait
    rounds = rounds.extend({name: records.per_round(values) for name, values in records.making.items()})

    def fed_period(cycle: Cycle) -> float:
        """Mean period of the steps if every batch had been ready, ns."""
        waited = np.maximum(cycle.input - fed / cycle.per_step, 0.0)
        return float(cycle.replay.sooner_by(waited).period().mean())

    rounds = rounds.extend({"sim_fed": records.of_cycles(fed_period)})
    share: Formula = (
        (lambda m: (m["sim"] - m["sim_fed"]) / m["replayed"])
        if n > 1
        else (lambda m: np.maximum(m[f"{PROBE}.input"] - fed, 0.0) / m[PROBE])
    )
    waits, make, step = rounds.measure(share), rounds.ratio("make"), rounds.measure(PLAIN)
    if waits is None or make is None or step is None:
        return None
    fed_step_ns = step.value * (1 - waits.value)
    batches = spec.accumulation_steps
    cpu = rounds.ratio("make_cpu")
    # Without workers the training process makes the batches, so its CPU time includes them.
    both = rounds.measure(lambda m: m["train_cpu"] + m["make_cpu"] * batches * (spec.data.workers > 0))
    top = spec.topology
    # With placement=spread every rank of a host works, each in some sub-group.
    ranks_here = (
        n if spec.launcher == "emulated" else top.ranks_per_host if top.spread else max(top.shares(n))
    )
    return DataLoading(
        workers=spec.data.workers,
        make_ms=make * MS,
        make_cpu_ms=cpu and cpu * MS,
        wait_share=waits,
        workers_needed=max(1, math.ceil(HEADROOM * make.value * batches / fed_step_ns)),
        cores_needed=None if both is None else round(ranks_here * both.value / fed_step_ns, 2),
        cores=cores or None,
        **_slowest(records, rounds),
    )


def _slowest(records: TrialRecords, rounds: Rounds) -> dict[str, Any]:
    """The rank that waits most, where the mean over ranks would hide it."""
    each = records.by_rank(PROBE, detailed=False)["input"]
    whole = each[np.isfinite(each).all(axis=1)]
    if not len(whole) or whole.shape[1] < 2:
        return {}
    means = whole.mean(axis=0)
    rank = int(means.argmax())
    if means[rank] <= UNEVEN * means.mean():
        return {}
    rounds = rounds.extend({"slowest": each[:, rank], "others": np.delete(each, rank, axis=1).mean(axis=1)})
    longer = rounds.ratio(lambda m: m["slowest"] / m["others"], level=level_of_each(whole.shape[1]))
    if longer is None or not longer.surely_above(1):
        return {}
    return {
        "slowest_rank": rank,
        "slowest_input_ms": rounds.ratio("slowest", scale=MS),
        "others_input_ms": rounds.ratio("others", scale=MS),
    }


def with_input(verdicts: tuple[Verdict, ...], point: Point, plan: Plan) -> tuple[Verdict, ...]:
    """The verdicts of one world size, with `input` inserted by its share if steps wait for their batches."""
    feed = point.loader
    share = feed.wait_share if feed else None
    if feed is None or share is None or not (share.surely_above(0) and share.value > NOTABLE):
        return verdicts
    verdict = named("input", point, share, _evidence(feed, point), _remedies(feed, plan))
    late = point.straggler
    if late is not None and late.phase == "input" and late.rank == feed.slowest_rank:
        # The same wait, of one rank: the straggler's verdict says what its input lacks.
        return tuple(
            replace(v, evidence=(*v.evidence, *verdict.evidence), try_=(*verdict.try_, *v.try_))
            if v.cause == "straggler"
            else v
            for v in verdicts
            if v.cause != "input"
        )
    others = [v for v in verdicts if v.cause not in ("input", "undecided")]
    larger = [v for v in others if v.cause == "slow_path" or (v.share and v.share.value > share.value)]
    return (*larger, verdict, *(v for v in others if v not in larger))


def _evidence(feed: DataLoading, point: Point) -> tuple[str, ...]:
    making = f"making a batch takes {significant(feed.make_ms.value)} ms"
    if feed.workers:
        every = feed.make_ms.value / feed.workers
        many = "1 worker makes" if feed.workers == 1 else f"{feed.workers} workers make"
        making = f"{making}, so {many} one every {significant(every)} ms a rank"
    else:
        making = f"{making} in the training process, between steps"
    lines = [making]
    if feed.slowest_input_ms is not None and feed.others_input_ms is not None:
        lines.append(
            f"rank {feed.slowest_rank} spends {significant(feed.slowest_input_ms.value)} ms of a step in input, "
            "the others "
            f"{significant(feed.others_input_ms.value)} ms, and then they wait for it"
        )
    share = feed.wait_share
    if point.step_ms is not None and share is not None:
        without = point.step_ms.value * (1 - share.value)
        lines.append(
            f"without waiting for input a step would take {significant(without)} of "
            f"{significant(point.step_ms.value)} ms"
        )
    grown = point.loss.input if point.loss else None  # over one rank alone
    hidden = grown is not None and share is not None and grown.value < share.value / 2
    if point.efficiency is not None and point.world_size > 1 and hidden:
        lines.append("one rank alone waits for its input too, so the efficiency does not show this")
    if _too_few_cores(feed):
        lines.append(
            f"more workers do not help: training and making batches this fast takes {feed.cores_needed:.1f} cores "
            f"a host, and there are {feed.cores}; make samples cheaper (decode or resize them beforehand)"
        )
    return tuple(lines)


def _too_few_cores(feed: DataLoading) -> bool:
    return feed.cores_needed is not None and feed.cores is not None and feed.cores_needed > feed.cores


def _remedies(feed: DataLoading, plan: Plan) -> tuple[Remedy, ...]:
    if feed.workers_needed is None:
        return ()
    gain = None if feed.wait_share is None else saved(feed.wait_share)
    if _too_few_cores(feed):
        return (
            Remedy(
                overrides="",
                code="decode, resize or cache the samples beforehand, so that a batch takes less processor time",
                predicted_gain=gain,
                assumes=ALL_READY,
            ),
        )
    if feed.workers_needed > feed.workers:
        more = Remedy(
            overrides=f"data.workers={feed.workers_needed}",
            code=f"DataLoader(dataset, num_workers={feed.workers_needed})",
            predicted_gain=gain,
            assumes=ALL_READY,
        )
    else:
        deeper = plan.spec.data.prefetch * 2  # the average rate suffices, but batches arrive in bursts
        more = Remedy(
            overrides=f"data.prefetch={deeper}",
            code=f"DataLoader(dataset, num_workers={feed.workers}, prefetch_factor={deeper})",
        )
    if plan.spec.topology.device == "cpu" or plan.spec.data.pin_memory:
        return (more,)
    pinned = "DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)"
    return (more, Remedy(overrides="data.pin_memory=true", code=pinned))
