"""One world size: arms, parts, efficiency, the loss waterfall, communication."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from scaling.analysis import clocks, own
from scaling.analysis.cost import cost
from scaling.analysis.curve import bus_factor
from scaling.analysis.loss import Link, earlier_transfer, earlier_wait, efficiency, loss, share_of_wait
from scaling.analysis.quantities import EARLIER, PHASES, TrialRecords
from scaling.analysis.results import (
    Arms,
    Bucket,
    Comm,
    Measured,
    Memory,
    Overhead,
    Parts,
    Point,
)
from scaling.analysis.simulate import period, period_of_mean
from scaling.analysis.starvation import loader
from scaling.analysis.stats import Floats, Means, Rounds, departure, no_finer, scaled, widened
from scaling.analysis.stragglers import describe, late_ranks
from scaling.plan import Plan
from scaling.records import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE

REPLAYED_OFF = 0.01
"""A replay whose bytes differ by more from a step's is not of the same traffic."""


def point(
    records: TrialRecords,
    plan: Plan,
    *,
    status: str,
    warmup_steps: int | None,
    whole_batch: TrialRecords | None,
    base_world_size: int = 1,
    sweep: dict[str, Floats],
    link: Link | None,
    clock_bound_ns: int = 0,
    fed_ns: int = -1,
    cores: int = 0,
    memory: Memory | None = None,
) -> Point:
    """Everything about one world size.

    `whole_batch` is the trial at `base_world_size` (strong scaling's baseline); where that is not 1, no rank ran
    it alone, and its steps under DDP are the base. `clock_bound_ns`: how far corrected clocks may be off;
    `fed_ns` and `cores` as scaling.analysis.starvation takes them.
    """
    trial, spec = records.trial, plan.spec
    n = trial.world_size
    if records.index.is_empty():
        return Point(world_size=n, hosts=trial.hosts, status=status, warmup_steps=warmup_steps)
    everybody = set(range(n))
    rounds = own.independent(_arm_values(records, everybody), records, spec)
    overhead = _overhead(rounds)
    hosts = [spec.topology.host_of(rank) for rank in range(n)]
    late = late_ranks(records, rounds, departure(overhead.aa_floor), hosts)
    typical = everybody - set(late.ranks) if late else everybody
    rounds = rounds.extend(_arm_values(records, typical, typical_only=True))
    rounds = rounds.extend(_merged_values(records, typical)).extend(sweep)
    rounds = rounds.extend(clocks.quantities(records, typical))
    if whole_batch is not None:
        whole = records.column(whole_batch.arm(BARE_ONE if base_world_size == 1 else PLAIN), "step")
        rounds = rounds.extend({"whole_batch": base_world_size * whole})
    strong = spec.mode == "strong"
    ratio = efficiency(n, strong=strong)
    samples_per_s = rounds.ratio(lambda m: trial.batch * n * 1e9 / m["plain"]) if trial.batch else None
    return Point(
        world_size=n,
        hosts=trial.hosts,
        status=status,
        warmup_steps=warmup_steps,
        step_ms=scaled(rounds.ratio("plain"), 1e-6),
        samples_per_s=samples_per_s,
        speedup=rounds.ratio(lambda m: n / base_world_size * ratio(m)),
        efficiency=rounds.ratio(ratio),
        base_world_size=base_world_size,
        efficiency_loaded=rounds.ratio(lambda m: m[BARE_ALL] / m["plain"]) if n > 1 else None,
        arms_ms=Arms(
            **{
                name: scaled(rounds.ratio(name), 1e-6)
                for name in (BARE_ONE, BARE_ALL, DDP_SOLO, PLAIN, PROBE)
            }
        ),
        parts_ms=_parts(rounds, n, clock_bound_ns / 1e6),
        closure=rounds.ratio(lambda m: m["closure"] / m["plain"]),
        loss=loss(
            rounds,
            n,
            ratio,
            link,
            strong=strong,
            size=records.bucket_bytes,
            partly=spec.own_loop,
        )
        if base_world_size == 1
        else None,
        straggler=describe(late, records, typical, rounds) if late else None,
        overhead=overhead,
        comm=_comm(rounds, records, plan, clock_bound_ns, departure(overhead.aa_floor))
        if n > 1 and records.bucket_bytes
        else None,
        memory=memory or Memory(),
        loader=loader(records, rounds, plan, fed_ns=fed_ns, cores=cores),
        clocks=clocks.clocks(records, rounds),
        cost=cost(
            rounds,
            samples=trial.batch * n,
            ranks=n,
            samples_per_s=samples_per_s,
            usd_per_gpu_hour=spec.cost.usd_per_gpu_hour,
        ),
    )


def _arm_values(records: TrialRecords, ranks: set[int], *, typical_only: bool = False) -> dict[str, Floats]:
    """Steps and phases of every arm over `ranks`; the step time that is reported stays that of all ranks."""
    values: dict[str, Floats] = {}
    for name, arm, detailed in (
        (BARE_ONE, BARE_ONE, None),
        (BARE_ALL, BARE_ALL, None),
        (DDP_SOLO, DDP_SOLO, None),
        (PROBE, PROBE, False),
        ("detailed", PROBE, True),
    ):
        frame = records.arm(arm, detailed=detailed, ranks=ranks)
        prefix = f"typical.{name}" if typical_only and name in (PROBE, "detailed") else name
        values[prefix] = records.column(frame, "step")
        for phase in PHASES:
            values[f"{prefix}.{phase}"] = records.column(frame, phase)
    if not typical_only:
        values[PLAIN] = records.column(records.arm(PLAIN), "step")
        for half in (0, 1):
            values[f"plain.{half}"] = records.column(records.arm(PLAIN, half=half), "step")
    return values


def _merged_values(records: TrialRecords, typical: set[int]) -> dict[str, Floats]:
    """What the ranks did together: merged blocks, their replays, and the step that closure simulates."""
    values = {name: records.per_round(found) for name, found in records.merged.items()}
    for name, ranks in ((EARLIER, None), (f"typical.{EARLIER}", typical)):
        values[name] = records.column(records.arm(PROBE, detailed=True, ranks=ranks), EARLIER)
    mask = np.array([r in typical for r in range(records.trial.world_size)])
    names = ("sim", "sim_typical", "link_exposed", "sim_free")
    simulated: dict[str, dict[tuple[int, int], float]] = {name: {} for name in names}
    for cycle in records.cycles:
        whole = period(cycle.ready, cycle.compute_end, cycle.transfer, cycle.start)
        mean, exposed = period_of_mean(mask, cycle.ready, cycle.compute_end, cycle.transfer)
        simulated["sim"][cycle.key] = float(whole.mean())
        simulated["sim_typical"][cycle.key] = float(mean.mean())
        simulated["link_exposed"][cycle.key] = float(exposed.mean())
        free = period(cycle.ready, cycle.compute_end, np.zeros_like(cycle.transfer), cycle.start)
        simulated["sim_free"][cycle.key] = float(free.mean())
    values |= {name: records.per_round(found) for name, found in simulated.items()}
    values["replay"] = records.per_round({key: float(t.sum()) for key, t in records.replay.items()})
    values["closure"] = records.per_round(_closure(records))
    return values


def _closure(records: TrialRecords) -> dict[tuple[int, int], float]:
    """The step from ddp_solo's ready times, stretched by each rank's overlap, and replay's bucket times."""
    sent = sum(records.bucket_bytes)
    if abs(sum(records.replayed) - sent) > REPLAYED_OFF * sent:  # another step's communication: see `again`
        return {}
    light = records.by_rank(PROBE, detailed=False)
    both = {name: np.stack([_filled(own) for own in light[name].T]) for name in ("forward", "compute")}
    found: dict[tuple[int, int], float] = {}
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
        found[key] = float(period(ready[None], compute_end[None], transfer[None])[0])
    return found


def _filled(values: Floats) -> Floats:
    """NaN replaced by the mean: the rounds of an own loop's baseline have no probe arm of their own."""
    there = np.isfinite(values)
    return np.where(there, values, values[there].mean()) if there.any() else values


def _overhead(rounds: Rounds) -> Overhead:
    return Overhead(
        probe_over_plain=rounds.ratio(lambda m: m[PROBE] / m[PLAIN]),
        aa_floor=rounds.ratio(lambda m: m["plain.1"] / m["plain.0"]),
    )


def _parts(rounds: Rounds, n: int, clock_bound_ms: float) -> Parts:
    """The light probe's step; its wait for communication is split as the detailed blocks split theirs."""

    def split(name: str) -> Callable[[Means], Floats]:
        return lambda m: m[f"{PROBE}.exposed"] * m[name] / m["exposed_all"]

    def ms(formula: Callable[[Means], Floats] | str) -> Measured | None:
        return scaled(rounds.measure(formula), 1e-6)

    def backward(m: Means) -> Floats:
        """Compute, and what backward does after its last bucket."""
        waits = split("exposed_transfer")(m) + split("exposed_skew")(m) if n > 1 else 0.0
        result: Floats = m[f"{PROBE}.compute"] + m[f"{PROBE}.exposed"] - waits
        return result

    return Parts(
        input=ms(f"{PROBE}.input"),
        forward=ms(f"{PROBE}.forward"),
        backward=ms(backward),
        exposed_transfer=widened(ms(split("exposed_transfer")), clock_bound_ms) if n > 1 else None,
        exposed_skew=widened(ms(split("exposed_skew")), clock_bound_ms) if n > 1 else None,
        optimizer=ms(f"{PROBE}.optimizer"),
        host=ms(f"{PROBE}.host"),
    )


def _comm(rounds: Rounds, records: TrialRecords, plan: Plan, clock_bound_ns: int, floor: float) -> Comm:
    n, total = records.trial.world_size, sum(records.bucket_bytes)
    factor = bus_factor(n)
    nominal, micro_steps = plan.nominal_bit_s(n), plan.spec.accumulation_steps
    busy = rounds.measure("busy")
    # An own loop's baseline replays each bucket once, whatever the loop sends of it and how often.
    again = total / sum(records.replayed) if records.replayed else 1.0

    def rate(formula: Callable[[Means], Floats]) -> Measured | None:
        """Of what moves while the link is busy, whose time the clocks may have wrong."""
        found = rounds.ratio(formula)
        off = clock_bound_ns / busy.value if busy else 0.0
        return found and no_finer(widened(found, found.value * off), floor)

    buckets = tuple(
        Bucket(
            bytes=size,
            ready_ms=scaled(rounds.measure(partial(_ready, f"bucket.{k}.ready", micro_steps)), 1e-6),
            transfer_ms=scaled(rounds.measure(f"bucket.{k}.transfer"), 1e-6),
            skew_ms=scaled(rounds.measure(f"bucket.{k}.skew"), 1e-6),
        )
        for k, size in enumerate(records.bucket_bytes)
    )
    return Comm(
        bytes_per_step=total,
        gradient_bytes=records.gradient_bytes or None,
        reductions=records.reductions(plan.spec),
        buckets=buckets,
        busbw_gbit_s=rate(lambda m: factor * total * 8 / m["busy"]),
        curve_share=rounds.ratio(lambda m: again * m["replay"] / m["busy"]),
        nominal_share=None
        if nominal is None
        else rate(lambda m: factor * total * 8 / m["busy"] * 1e9 / nominal),
        free_speedup=rounds.ratio(
            lambda m: 1 / (1 - share_of_wait(m, m["sim"] - m["sim_free"] + earlier_transfer(m)))
        ),
        hidden_share=rounds.measure(lambda m: 1 - (m["exposed_transfer"] + earlier_transfer(m)) / m["busy"]),
        least_share=rounds.ratio(lambda m: m["least"] / m["span"]),
    )


def _ready(name: str, micro_steps: int, m: Means) -> Floats:
    """Since the last micro-step's backward began, where `name` is since the end of it less all backwards, ns."""
    before = (micro_steps - 1) / micro_steps * m["detailed.compute"] + earlier_wait(m)
    result: Floats = m[name] - (before if micro_steps > 1 else 0.0)
    return result
