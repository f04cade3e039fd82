"""What a step sends: its collectives, their bandwidth, and the step simulated from their times alone (closure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from scaling.analysis.decompose.loss import wait_as_share_of_step
from scaling.analysis.decompose.quantities import EARLIER, OWN_PHASES, Key, TrialRecords, by_kind
from scaling.analysis.decompose.sharded import simulated
from scaling.analysis.decompose.stragglers import LATEST, STEP
from scaling.analysis.network.replay import Barrier, Replay
from scaling.analysis.results import Bucket, Collective, Comm, Measured
from scaling.analysis.statistics.rounds import MS, Floats, Formula, Means, Rounds
from scaling.settings.plan import Plan
from scaling.settings.schedule import DDP_SOLO, PROBE

REPLAYED_OFF = 0.01
"""A replay whose bytes differ by a larger fraction from a step's is not the same traffic."""


def comm(rounds: Rounds, records: TrialRecords, plan: Plan, clock_bound_ns: int, floor: float) -> Comm:
    """Traffic of a step, from the detailed probe blocks.

    `clock_bound_ns`: error of corrected clocks; `floor`: A/A floor, the fraction to which bandwidth can be known.
    """
    n, total = records.trial.world_size, sum(records.bucket_bytes)
    moved_bytes = sum(collective.moved for collective in records.sent)  # what a rank's link carries in a step
    one_axis = len({collective.axis for collective in records.sent}) <= 1
    # Several axes of a mesh go over several links, within hosts and between them: no one rate is nominal for their sum.
    nominal, micro_steps = plan.nominal_bit_s(n) if one_axis else None, plan.spec.accumulation_steps
    busy = rounds.measure("busy")
    # The baseline of an own loop replays each bucket once, however often and in whatever size the loop sends it.
    again = total / sum(records.replayed) if records.replayed else 1.0

    def rate(formula: Formula) -> Measured | None:
        """A bandwidth over the link's busy time, which the clocks' error makes uncertain."""
        bandwidth = rounds.ratio(formula)
        off = clock_bound_ns / busy.value if busy else 0.0
        return bandwidth and bandwidth.widened(bandwidth.value * off).no_finer(floor)

    buckets = tuple(
        Bucket(
            bytes=size,
            ready_ms=rounds.measure(partial(_ready, f"bucket.{k}.ready", micro_steps), scale=MS),
            transfer_ms=rounds.measure(f"bucket.{k}.transfer", scale=MS),
            skew_ms=rounds.measure(f"bucket.{k}.skew", scale=MS),
            shared_ms=rounds.measure(f"bucket.{k}.shared", scale=MS),
        )
        for k, size in enumerate(() if records.programs else records.bucket_bytes)
    )

    def collective(index: int, places: Sequence[int]) -> Collective:
        some = [records.sent[place] for place in places]
        moved, name = sum(message.moved for message in some), f"kind.{index}"
        return Collective(
            kind=some[0].kind,
            phase=some[0].phase,
            communicator=some[0].axis,
            ranks=some[0].ranks,
            calls=len(some),
            bytes=sum(message.bytes for message in some),
            transfer_ms=rounds.measure(f"{name}.transfer", scale=MS),
            exposed_transfer_ms=rounds.measure(f"{name}.exposed_transfer", scale=MS),
            exposed_skew_ms=rounds.measure(f"{name}.exposed_skew", scale=MS),
            busbw_gbit_s=rate(lambda m: moved * 8 / m[f"{name}.transfer"]),
        )

    return Comm(
        bytes_per_step=total or max(0, records.beside.bytes),
        unclaimed_bytes=None if records.beside.bytes < 0 else records.beside.unclaimed_bytes,
        gradient_bytes=records.gradient_bytes or None,
        reductions=records.reductions(plan),
        buckets=buckets,
        collectives=tuple(collective(k, places) for k, places in enumerate(by_kind(records.sent))),
        busbw_gbit_s=rate(lambda m: moved_bytes * 8 / m["busy"]),
        curve_share=rounds.ratio(lambda m: again * m["replay"] / m["busy"]),
        nominal_share=None
        if nominal is None
        else rate(lambda m: moved_bytes * 8 / m["busy"] * 1e9 / nominal),
        free_speedup=rounds.ratio(_free if records.cycles else lambda m: m[STEP] / m[LATEST]),
        hidden_share=rounds.measure(lambda m: 1 - m["bucket_transfer"] / m["busy"]),
        host_lead_ms=rounds.measure("lead", scale=MS),
        starved_share=rounds.measure("starved"),
        least_share=rounds.ratio(lambda m: m["least"] / m["span"]),
    )


def _free(m: Means) -> Floats:
    """The step over the replayed one whose communication takes no time."""
    return 1 / (1 - wait_as_share_of_step(m, m["sim"] - m["sim_free"], "replayed"))


def _ready(name: str, micro_steps: int, m: Means) -> Floats:
    """Ready time since the last micro-step's backward began, ns; `name` counts from its end minus all backwards."""
    before = (micro_steps - 1) / micro_steps * m["detailed.compute"] + m[EARLIER]
    return m[name] - (before if micro_steps > 1 else 0.0)


def closure(records: TrialRecords, plan: Plan) -> dict[Key, float]:
    """The step from ddp_solo's ready times, stretched by each rank's overlap, and replay's bucket times."""
    if not records.cycles:
        return {}
    if records.programs:
        return _closure_of_programs(records, plan)
    sent = sum(records.bucket_bytes)
    if abs(sum(records.replayed) - sent) > REPLAYED_OFF * sent:  # other traffic than the step's
        return {}
    both = _phases(records, "forward", "compute")
    periods: dict[Key, float] = {}
    for i, key in enumerate(records.keys()):
        alone, transfer = records.solo.get(key), records.replay.get(key)
        if alone is None or transfer is None or alone["ready"].shape[1] != len(transfer):
            continue
        tail = alone["optimizer"] + alone["host"]
        before = tail + alone["input"] + both["forward"][:, i]
        backward = alone["ready"] - (alone["input"] + alone["forward"])[:, None]
        stretch = both["compute"][:, i] / alone["compute"]
        ready = before[:, None] + np.maximum(backward, 0.0) * stretch[:, None]
        compute_end = before + both["compute"][:, i]
        buffers = records.merged.get("buffer_transfer", {}).get(key, 0.0)
        barriers = (Barrier.of_all((tail + alone["input"])[None], buffers),) if buffers else ()
        replay = Replay(
            ready=ready[None], compute_end=compute_end[None], transfer=transfer[None], barriers=barriers
        )
        periods[key] = float(replay.period()[0])
    return periods


def _closure_of_programs(records: TrialRecords, plan: Plan) -> dict[Key, float]:
    """Closure of a sharded step in each round, from its units' turns over one rank.

    Layers that are divided over ranks, and SyncBatchNorm, have no rank that computes its part alone. Own times are then
    the detailed block's, at the light probe's pace.
    """
    probed = [_phases(records, *OWN_PHASES, detailed=detailed) for detailed in (False, True)]
    light, detailed = (np.sum(list(phases.values()), axis=0) for phases in probed)
    tensor = plan.spec.parallel.mesh(records.trial.world_size).tensor
    by_itself = bool(np.isfinite(records.arm(DDP_SOLO)["step"]).any())  # else no rank can train alone
    turnless = tensor > 1 or (by_itself and not records.turns)
    periods = {}
    for i, key in enumerate(records.keys()):
        program, transfer = records.programs.get(key), records.replay.get(key)
        pace = light[:, i] / detailed[:, i]
        # A run that was cut off may have a round without a light block, whose steps would never end.
        if program is None or transfer is None or not np.isfinite(pace).all():
            continue
        if len(transfer) != len(records.sent):
            continue
        if turnless:
            periods[key] = program.at_pace(pace, transfer)
        elif (alone := records.turns.get(key)) is not None:
            forward, backward = (probed[0][n][:, i] / alone.phases[n] for n in ("forward", "compute"))
            stretch = {"forward": forward, "backward": backward}
            if not (np.isfinite(forward).all() and np.isfinite(backward).all()):
                continue
            periods[key] = simulated(program, records.sent, alone, stretch, transfer)
    return periods


def _phases(records: TrialRecords, *names: str, detailed: bool = False) -> dict[str, Floats]:
    """R x rounds of each phase in probe blocks."""
    every = records.by_rank(PROBE, detailed=detailed)
    return {name: np.stack([_filled(row) for row in every[name].T]) for name in names}


def _filled(values: Floats) -> Floats:
    """NaN replaced by the mean, since the rounds of an own loop's baseline have no probe arm."""
    finite = np.isfinite(values)
    return np.where(finite, values, values[finite].mean()) if finite.any() else values
