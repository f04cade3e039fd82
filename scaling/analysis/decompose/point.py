"""One world size: arms, parts, efficiency, the loss waterfall; its communication is in `traffic`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from scaling.analysis.decompose import imbalance, own_loop, stragglers
from scaling.analysis.decompose.imbalance import MEAN
from scaling.analysis.decompose.loss import BASE, Link, cost, efficiency, loss, loss_by_kind
from scaling.analysis.decompose.quantities import EARLIER, PHASES, TrialRecords
from scaling.analysis.decompose.starvation import loader
from scaling.analysis.decompose.stragglers import Late, describe, late_ranks
from scaling.analysis.decompose.traffic import closure, comm
from scaling.analysis.network.channel import HOSTS_OWN
from scaling.analysis.quality import clocks, untracked_traffic
from scaling.analysis.results import (
    ArmTimes,
    Degrees,
    Measured,
    NamedPhase,
    Overhead,
    PeakMemory,
    Point,
    StepParts,
)
from scaling.analysis.statistics.rounds import MS, Floats, Formula, Means, Rounds, equal_arms_apart
from scaling.settings.plan import Plan
from scaling.settings.schedule import BARE_ALL, BARE_ONE, DDP_SOLO, PLAIN, PROBE

WOKEN_NS = 200_000
"""A host's back end wakes who waits for it about 100 us late, and not all ranks alike: none is late by less."""


def point(
    records: TrialRecords,
    plan: Plan,
    *,
    status: str,
    warmup_steps: int | None,
    base: TrialRecords | None,
    base_world_size: int = 1,
    sweep: dict[str, Floats],
    link: Link | None,
    clock_bound_ns: int = 0,
    fed_ns: int = -1,
    cores: int = 0,
    memory: PeakMemory | None = None,
) -> Point:
    """Everything about one world size.

    `base`: the trial at `base_world_size`, where that is the baseline: in strong scaling, and where it is above 1. Then
    no rank ran the whole batch or model alone, and the steps over its ranks are the base. `clock_bound_ns`: error of
    corrected clocks. `fed_ns` and `cores`: see scaling.analysis.decompose.starvation.
    """
    trial, spec = records.trial, plan.spec
    n = trial.world_size
    if records.index.is_empty():
        return Point(world_size=n, hosts=trial.hosts, status=status, warmup_steps=warmup_steps)
    readings = arms(records, plan)
    rounds, late, typical = readings.rounds, readings.late, readings.typical
    overhead = _overhead(rounds)
    rounds = rounds.extend(_merged_values(records, readings, plan)).extend(sweep)
    rounds = rounds.extend(clocks.quantities(records, typical))
    strong, over_one = spec.mode == "strong", n > 1 and base_world_size == 1
    if base is not None:
        whole = base.arm(BARE_ONE if base_world_size == 1 else PLAIN, rounds=records.index)["step"]
        devices = base_world_size if strong else spec.parallel.mesh(base_world_size).tensor
        rounds = rounds.extend({BASE: devices * whole})
    mesh = spec.parallel.mesh(n)
    tensor = mesh.tensor
    ratio = efficiency(n, strong=strong, tensor=tensor, base=base_world_size)
    samples = trial.batch * mesh.data_parallel  # ranks that divide a model have the same
    samples_per_s = rounds.ratio(lambda m: samples * 1e9 / m["plain"]) if samples else None
    return Point(
        world_size=n,
        hosts=trial.hosts,
        status=status,
        warmup_steps=warmup_steps,
        step_ms=rounds.ratio("plain", scale=MS),
        samples_per_s=samples_per_s,
        speedup=rounds.ratio(lambda m: n / base_world_size * ratio(m)),
        efficiency=rounds.ratio(ratio),
        base_world_size=base_world_size,
        efficiency_loaded=rounds.ratio(lambda m: m.paired[BARE_ALL] / (tensor * m.paired["plain"]))
        if n > 1
        else None,
        arms_ms=ArmTimes(
            **{name: rounds.ratio(name, scale=MS) for name in (BARE_ONE, BARE_ALL, DDP_SOLO, PLAIN, PROBE)}
        ),
        parts_ms=_parts(rounds, n, clock_bound_ns / 1e6),
        closure=rounds.ratio(lambda m: m.paired["closure"] / m.paired["plain"]),
        loss=loss(
            rounds,
            n,
            ratio,
            link,
            strong=strong,
            tensor=tensor,
            sharded=mesh.shard > 1,
            sent=records.sent,
            own_loop=plan.kind.followed,
            has_details=bool(records.cycles),
        )
        if over_one
        else None,
        loss_by_kind=loss_by_kind(rounds, records.sent, link) if over_one and records.cycles else (),
        parallel=Degrees(strategy=spec.parallel.name, **asdict(mesh)),
        tokens=imbalance.balance(records, rounds),
        phases=readings.phases,
        tokens_per_s=rounds.ratio(lambda m: mesh.data_parallel * m[MEAN] * 1e9 / m["plain"]),
        straggler=describe(late, readings.evened, typical, rounds, readings.explained_ns) if late else None,
        overhead=overhead,
        comm=comm(rounds, records, plan, clock_bound_ns, overhead.floor)
        if n > 1 and (records.sent or records.beside.bytes > 0)
        else None,
        memory=memory or PeakMemory(),
        loader=loader(records, rounds, plan, fed_ns=fed_ns, cores=cores),
        clocks=clocks.clocks(records, rounds),
        cost=cost(
            rounds,
            samples=samples,
            ranks=n,
            samples_per_s=samples_per_s,
            usd_per_gpu_hour=spec.cost.usd_per_gpu_hour,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """The arms' steps and phases in rounds, and which ranks are late."""

    rounds: Rounds
    """Phases of the typical ranks are `typical.<arm>`."""
    late: Late | None
    typical: set[int]
    """The ranks that are not late."""
    evened: TrialRecords
    """The records as if all ranks had equal tokens, where these are known to take time; else as they are."""
    explained_ns: Mapping[str, float]
    """By phase: how much longer the latest rank's tokens make it."""
    phases: tuple[NamedPhase, ...]
    """Those that the loop names; with no late rank where ranks may have waited unseen."""


def arms(records: TrialRecords, plan: Plan) -> Arms:
    """Read the arms of a trial, and find its late ranks."""
    n = records.trial.world_size
    everybody = set(range(n))
    rounds = records.in_rounds(_arm_values(records, everybody), plan)
    hosts = [plan.spec.topology.host_of(rank) for rank in range(n)]
    rounds = rounds.extend(imbalance.quantities(records))
    of_tokens = imbalance.effect(records, rounds)
    seen = not untracked_traffic.hides_waits(records)
    floor = _overhead(rounds).floor
    late = None
    if seen and of_tokens is not None:
        late = imbalance.late_apart(records, rounds, of_tokens, floor, hosts)
    elif seen:
        late = late_ranks(records, rounds, floor, hosts)
    least_ns = WOKEN_NS if plan.spec.topology.backend in HOSTS_OWN else 0.0
    if late is not None and not late.cost_ns.surely_above(least_ns):
        late = None
    typical = everybody - set(late.ranks) if late else everybody
    rounds = rounds.extend(_arm_values(records, typical, typical_only=True))
    return Arms(
        rounds=rounds,
        late=late,
        typical=typical,
        evened=of_tokens.evened(records) if of_tokens else records,
        explained_ns=of_tokens.explained_ns(records, late.ranks[0], typical) if of_tokens and late else {},
        phases=own_loop.phases(records, rounds, floor, least_ns if seen else math.inf),
    )


def _arm_values(records: TrialRecords, ranks: set[int], *, typical_only: bool = False) -> dict[str, Floats]:
    """Steps and phases of every arm, mean over `ranks`; `plain` is always the mean over all ranks."""
    means = {arm: records.arm(arm, ranks=ranks) for arm in (BARE_ONE, BARE_ALL, DDP_SOLO)}
    probe = records.arm(PROBE, detailed=False, ranks=ranks)
    if typical_only:
        means[f"typical.{PROBE}"] = probe
    else:
        means |= {PROBE: probe, "detailed": records.arm(PROBE, detailed=True, ranks=ranks)}
    values = {name: of_arm["step"] for name, of_arm in means.items()}
    values |= {f"{name}.{phase}": of_arm[phase] for name, of_arm in means.items() for phase in PHASES}
    if not typical_only:
        values[PLAIN] = records.arm(PLAIN)["step"]
        values |= {f"plain.{half}": records.arm(PLAIN, half=half)["step"] for half in (0, 1)}
    return values


def _merged_values(records: TrialRecords, readings: Arms, plan: Plan) -> dict[str, Floats]:
    """Quantities of all ranks together: merged blocks, their replays, and the step simulated for closure."""
    values = {name: records.per_round(values_by_round) for name, values_by_round in records.merged.items()}
    detailed = records.arm(PROBE, detailed=True)
    if records.light and not _details_hold(values, detailed["exposed"]):
        values |= stragglers.waits(records)
    values[EARLIER] = detailed[EARLIER]
    evened, typical = readings.evened, readings.typical
    mask = np.array([rank in typical for rank in range(records.trial.world_size)])
    values["replayed"] = records.of_cycles(lambda c: float(c.step.mean()))
    values["replayed.exposed"] = records.of_cycles(lambda c: float(c.waited.mean()))
    values["replayed.transfer"] = records.of_cycles(lambda c: float(c.moving.mean()))
    values["sim"] = records.of_cycles(lambda c: float(c.replay.period().mean()))
    values |= stragglers.quantities(records, evened, typical)
    if evened is not records:
        values[imbalance.EVENED] = imbalance.evened(records, evened)
    values["sim_typical"] = evened.of_cycles(lambda c: float(c.replay.at_mean_of(mask)[0].mean()))
    values["link_exposed"] = evened.of_cycles(lambda c: float(c.replay.at_mean_of(mask)[1].mean()))
    values["sim_free"] = records.of_cycles(lambda c: float(c.replay.without_transfer().period().mean()))
    values["replay"] = records.per_round({key: float(t.sum()) for key, t in records.replay.items()})
    values["closure"] = records.per_round(closure(records, plan))
    return values


def _details_hold(values: dict[str, Floats], exposed: Floats) -> bool:
    """Whether details split most of what a step waits for; an own loop may wait in collectives that nobody splits."""
    split = np.nansum(values.get("exposed_all", np.zeros(1)))
    return bool(split > 0 and split >= MOST * np.nansum(exposed))


MOST = 0.9
"""Share of all waits from which on the split of the model's own stands for the others."""
SPREAD_OF = (BARE_ONE, BARE_ALL, DDP_SOLO, "plain.0", "plain.1", PROBE, "detailed")
"""Arms of which the spread between equal blocks is taken."""


def _overhead(rounds: Rounds) -> Overhead:
    return Overhead(
        probe_over_plain=rounds.ratio(lambda m: m[PROBE] / m[PLAIN]),
        aa_floor=rounds.ratio(lambda m: m["plain.1"] / m["plain.0"]),
        equal_arms_apart=equal_arms_apart(rounds, SPREAD_OF),
    )


def _parts(rounds: Rounds, n: int, clock_bound_ms: float) -> StepParts:
    """Parts of the light probe's step; its wait for communication is split as in the detailed blocks."""
    ms = partial(rounds.measure, scale=MS)

    def split(name: str) -> Formula:
        return lambda m: m[f"{PROBE}.exposed"] * m[name] / m["exposed_all"]

    def waits(name: str) -> Measured | None:
        wait_ms = ms(split(name)) if n > 1 else None
        return wait_ms and wait_ms.widened(clock_bound_ms)

    names = ["exposed_transfer", "exposed_skew"]
    names += ["bucket_enqueue"] if "bucket_enqueue" in rounds else []
    enqueue = waits("bucket_enqueue")

    def backward(m: Means) -> Floats:
        """Compute, and the rest of backward after its last bucket."""
        waited = sum((split(name)(m) for name in names), np.zeros(1)) if n > 1 else 0.0
        return m[f"{PROBE}.compute"] + m[f"{PROBE}.exposed"] - waited

    return StepParts(
        input=ms(f"{PROBE}.input"),
        forward=ms(f"{PROBE}.forward"),
        backward=ms(backward),
        exposed_transfer=waits("exposed_transfer"),
        exposed_skew=waits("exposed_skew"),
        exposed_enqueue=enqueue if enqueue and enqueue.value > 0 else None,
        optimizer=ms(f"{PROBE}.optimizer"),
        host=ms(f"{PROBE}.host"),
    )
