"""How long a run takes, as it is said at its start, by the steps of its tryout. Pure: no I/O, no torch.

Rank 0 fits the launch again, by the steps of its warm-up and within the time that was said. So an estimate that is off
changes what is measured, and not how long it takes.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from scaling.settings import schedule
from scaling.settings.budget import BLOCK_S, CaseCosts, Costs, Fitted, fit_cases, fit_training, least_rounds
from scaling.settings.cases import Case, Largest, batches, cases, ladder, variants
from scaling.settings.plan import DETAILS, IN_WORDS, SAMPLED, Content, Plan, Promise
from scaling.settings.run import Spec
from scaling.units import format_duration

SIDE_BY_SIDE = 1.1
"""Ranks on the same cores slow one another down by about this much, through caches and memory."""
HOP_S = 1.5e-4
"""Processor time that a rank takes for a hop of Gloo's ring, most of it to wake its thread (64 ranks on two cores)."""
LOOPBACK_BYTES_S, DEVICE_BYTES_S = 0.5e9, 10e9
"""About what an all-reduce moves where no link is named: Gloo on one machine, NCCL."""
MESSAGE_S = 0.003
"""A small message of the size sweep, with its repetitions."""
JOIN_S, HOST_S, ROOFLINE_S, COMPILE_S = 1.0, 0.5, 2.5, 20.0
"""To join the group, to make an emulated host, to measure the device's ceilings, to compile a case."""
END_STARTS, END_S = 1.2, 3.0
"""Analysis and reports, in starts of a process and on top of them."""
PROCESS_S = 2.5
"""About what a process takes to start and to import torch, on an idle core."""
BYTES_S, AWAKE_S = 0.7e9, 0.001
"""How fast the synthetic model's optimizer goes through parameters, and what the rest of its step takes of a core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The cores that the run has, and how many other programs want them."""

    cores: int
    beside: float = 0.0
    """Processes that run beside this one."""

    def slower(self, processes: int) -> float:
        """How many times longer compute takes in each of some processes at once than in a single one."""
        if processes <= 1:
            return 1.0
        alone = min(1.0, self.cores / (1 + self.beside))
        together = min(1.0, self.cores / (processes + self.beside))
        return alone / together * SIDE_BY_SIDE

    def shared(self, processes: int) -> float:
        """How many times longer compute takes in each of some processes than on a core of its own."""
        crowd = (processes + self.beside) / self.cores
        return crowd * SIDE_BY_SIDE if processes > 1 and crowd > 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedStep:
    """How long one step of a batch took in the tryout."""

    batch: int
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one process took to start and to run steps of the model: the tryout's answer."""

    start_s: float
    """From the start of the process to the built model."""
    steps: tuple[TimedStep, ...]
    """Ascending by batch, at least one."""
    first_s: float = 0.0
    """What the first step took beyond the later ones, such as compiling."""
    parameters_bytes: int = 0

    def step_s(self, batch: float) -> float:
        """A step's time at a batch, on the line through the two nearest that were timed (or from 0)."""
        samples = [TimedStep(batch=0, step_s=0.0), *self.steps]
        above = next((k for k, sample in enumerate(samples) if sample.batch >= batch), len(samples) - 1)
        low, high = samples[max(0, above - 1)], samples[above]
        if batch <= high.batch and above == 1:  # between nothing and the least batch
            return high.step_s
        slope = max(0.0, (high.step_s - low.step_s) / (high.batch - low.batch))
        if batch > high.batch:
            # Noise of two small batches would be many times as much of a large one. A step has a fixed part that is
            # not below 0, and a part that grows.
            a_sample = high.step_s / high.batch
            slope = min(max(slope, a_sample / 2), a_sample)
        return max(low.step_s, high.step_s + slope * (batch - high.batch))


# What a run says before it starts


def synthetic_timing(spec: Spec, machine: Machine) -> Timing:
    """The timing of a model whose compute is sleeps: it follows from the settings."""
    args = spec.model.args
    parameters = float(args["param_mb"]) * 2**20
    a_sample = float(args["compute_ms"]) / 1e3 / float(args["reference_batch"])
    if spec.task == "inference":
        a_sample, parameters = a_sample / 3, 0.0  # forward alone (scaling.worker.models.synthetic)
    samples = tuple(
        TimedStep(batch=batch, step_s=batch * a_sample + parameters / BYTES_S + AWAKE_S) for batch in (2, 64)
    )
    start_s = PROCESS_S * max(1.0, (1 + machine.beside) / machine.cores)
    return Timing(start_s=start_s, steps=samples, parameters_bytes=int(parameters))


def fit(plan: Plan, timing: Timing, machine: Machine) -> Fitted:
    """What fits into the budget, by the tryout's steps. With batch=max, of the smallest batch, in all of the time."""
    spec = plan.spec
    if not spec.kind.by_cases:
        return fit_training(plan, plan.trials, training_costs(plan, timing, machine))
    least = {variant: ladder(1, variant.accumulation_steps) for variant in variants(spec)}
    asked = cases(spec, least if spec.batch_max else None)
    fitted = fit_cases(plan, asked, case_costs(plan, asked, timing, machine))
    return replace(fitted, rounds_s=spec.measure.budget_s) if spec.batch_max and fitted.fits else fitted


def promise(plan: Plan, timing: Timing, machine: Machine, fitted: Fitted, tried_s: float) -> Promise:
    """How long the run takes. `tried_s`: what the tryout took."""
    spec = plan.spec
    sizes = [n for n in spec.world_sizes if fitted.content.holds(n)]
    starting = machine.slower(max(sizes))
    # The launcher imports torch before it starts the ranks.
    start_s = timing.start_s * (1 + starting) + JOIN_S
    start_s += HOST_S * plan.hosts if spec.launcher == "emulated" else 0.0
    if spec.kind.by_cases:
        start_s += COMPILE_S * sum(variant.compile for variant in variants(spec)) * max(1, len(batches(spec)))
    else:
        start_s += timing.first_s * 4 if spec.compile else 0.0
        start_s += ROOFLINE_S * starting if fitted.content.has(DETAILS) else 0.0
    return Promise(
        tried_s=tried_s,
        start_s=start_s,
        search_s=2 * start_s + spec.measure.budget_s if spec.batch_max else 0.0,
        warmup_s=fitted.warmup_s,
        rounds_s=fitted.rounds_s,
        end_s=END_STARTS * timing.start_s + END_S,
        launches=spec.repeats,
    )


def refusal(plan: Plan, timing: Timing, enough_s: float) -> str:
    """Why a budget holds nothing, and which one does."""
    measure, least = plan.spec.measure, timing.steps[0]
    return (
        f"measure.budget_s={measure.budget_s:g}: too short for {least_rounds(measure)} rounds of the least "
        f"(a step of batch {least.batch} took {format_duration(least.step_s)} in one process); "
        f"measure.budget_s={rounded_up(enough_s)} is enough"
    )


def rounded_up(seconds: float) -> int:
    """Seconds to two figures, rounded up."""
    unit = int(10 ** max(0, math.floor(math.log10(max(seconds, 1))) - 1))
    return max(1, math.ceil(seconds / unit) * unit)


def left_out_lines(plan: Plan, content: Content, largest: Largest | None = None) -> tuple[str, ...]:
    """One line about what the budget leaves out, and the budget that would hold it; none where all is measured.

    `largest`: what the search of batch=max found, if it is over.
    """
    spec, most = plan.spec, content.batch_most
    listed = batches(spec) if spec.kind.by_cases and not spec.batch_max else ()
    if largest is not None:
        listed = tuple(sorted({batch for rungs in largest.rungs().values() for batch in rungs}))
    large = [batch for batch in listed if most is not None and batch > most]
    sizes = [n for n in spec.world_sizes if not content.holds(n)]
    few = content.detailed is not None and len(content.detailed) < least_rounds(spec.measure)
    in_first = ", ".join(part for part in SAMPLED if content.has(part)) if few else ""
    late = largest is not None and any(search.late for search in largest.items)
    parts = (
        *(["larger batches in the search for the largest"] if late else []),
        *([f"batch {', '.join(map(str, large))}"] if large else []),
        *([f"batches above {most}"] if most is not None and not listed else []),
        *(IN_WORDS[part] for part in content.without),
        *([f"{in_first} in every round but the first"] if in_first else []),
        *([f"world size {', '.join(map(str, sizes))}"] if sizes else []),
    )
    if not parts:
        return ()
    budget_s, whole_s = spec.measure.budget_s, rounded_up(content.whole_s or 0.0)
    more = f"; measure.budget_s={whole_s} would hold all" if whole_s > budget_s else ""
    return (f"the budget of {format_duration(budget_s)} leaves out {'; '.join(parts)}{more}",)


# What the pieces of a launch take, by the tryout's steps


def training_costs(plan: Plan, timing: Timing, machine: Machine) -> Costs:
    """What the pieces of a launch take that takes a training step apart.

    What divided layers send is not known before the launch: a rank's part of the step is taken for its share alone.
    """
    spec = plan.spec
    step_s, alone_s, exchange_s, sweep_s, block_s = (dict[int, float]() for _ in range(5))
    awake_s = spec.accumulation_steps * AWAKE_S + timing.parameters_bytes / BYTES_S
    buckets = 1 + math.ceil(max(0.0, timing.parameters_bytes / 2**20 - 1) / spec.ddp.bucket_cap_mb)
    for trial in (*plan.trials, *plan.baseline(plan.trials)):
        n, here = trial.world_size, local_ranks(plan, trial.world_size)
        alone_s[n] = spec.accumulation_steps * timing.step_s(trial.batch / spec.accumulation_steps)
        meshes = [each.parallel.mesh(n) for each in spec.strategies]
        # Beside its bytes a message takes its hops, among more ranks than cores.
        hops_s = 2 * (n - 1) * HOP_S * machine.shared(here) if here > machine.cores else 0.0
        together = spec.topology.ranks_per_host if spec.topology.hosts_of(n) > 1 else 1
        wire = [min(m.tensor, together) / m.tensor if m.data_parallel > 1 else 0.0 for m in meshes]
        sent_bytes = timing.parameters_bytes * sum(wire) / len(meshes)
        exchange_s[n] = sent_bytes / _bytes_s(spec, n) + hops_s * buckets
        compute_s = alone_s[n] * sum(1 / mesh.tensor for mesh in meshes) / len(meshes)
        compute_s *= _slower(plan, n, machine)
        if spec.model.synthetic:  # sleeps need no core; the rest of the step shares them
            compute_s += awake_s * (machine.shared(here) - 1)
        step_s[n] = compute_s + exchange_s[n] + (spec.inject.stalls_s if n > 1 else 0.0)
        sweep_s[n] = _sweep_s(spec, n, hops_s)
        block_s[n] = BLOCK_S * machine.shared(here)
    return Costs(step_s=step_s, alone_s=alone_s, exchange_s=exchange_s, sweep_s=sweep_s, block_s=block_s)


def case_costs(plan: Plan, asked: tuple[Case, ...], timing: Timing, machine: Machine) -> CaseCosts:
    """What the pieces of a launch by cases take. The tryout times the settings of the run, not each variant."""
    spec, step_s = plan.spec, {}
    sent_bytes = 0 if spec.task == "inference" else timing.parameters_bytes
    for n, (index, case) in itertools.product(spec.world_sizes, enumerate(asked)):
        micro = case.variant.accumulation_steps
        alone_s = micro * timing.step_s(case.batch / micro)
        step_s[n, index] = alone_s * _slower(plan, n, machine) + sent_bytes / _bytes_s(spec, n)
    return CaseCosts(step_s=step_s)


def local_ranks(plan: Plan, world_size: int) -> int:
    """Ranks of a trial that compute on this machine's cores; 0 where they have devices, or hosts of their own."""
    if plan.spec.topology.device != "cpu" or plan.spec.launcher == "slurm":
        return 0
    return sum(map(len, plan.sub_groups(world_size)))


def _slower(plan: Plan, world_size: int, machine: Machine) -> float:
    """How many times longer a step's compute takes in each rank of a trial than in one rank alone."""
    here = local_ranks(plan, world_size)
    return 1.0 if plan.spec.model.synthetic or here == 0 else machine.slower(here * plan.spec.threads)


def _bytes_s(spec: Spec, world_size: int) -> float:
    """About how fast an all-reduce goes through its bytes on its slowest link; infinite for a single rank."""
    if world_size == 1:
        return math.inf
    usual = LOOPBACK_BYTES_S if spec.topology.device == "cpu" else DEVICE_BYTES_S
    rates = (spec.topology.link.rate_bit_s, spec.inject.link_rate_bit_s)
    slowest = [rate / 8 for rate in rates if rate is not None and spec.topology.hosts_of(world_size) > 1]
    return min([usual, *slowest]) / (2 * (world_size - 1) / world_size)


def _sweep_s(spec: Spec, world_size: int, hops_s: float) -> float:
    """One size sweep, as far as one measurement stays affordable. `hops_s`: of each message beside its bytes."""
    if world_size == 1:
        return 0.0
    backend, took = spec.topology.backend, dict[int, float]()
    for size in schedule.sizes(schedule.largest(spec.measure, backend), backend):
        took[size] = size / _bytes_s(spec, world_size) + max(MESSAGE_S, hops_s)
        if not schedule.affordable(took[size], size, spec.measure, backend):
            break
    if schedule.streamed(backend) or hops_s:  # else MESSAGE_S is enough for the repeats of a small message
        sent = schedule.messages([0], list(took), backend)
        return sum(took[message.bytes] * message.sent for message in sent) * len(spec.measure.collectives)
    return sum(took.values()) * len(spec.measure.collectives)
